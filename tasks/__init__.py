"""Background tasks, scheduled in the caller's transaction. A leaf package: it imports only ``relay``.

@task("send_welcome_email", queue="mail")
def send_welcome_email(email: WelcomeEmail, session: Session) -> None: ...

schedule(session, send_welcome_email, WelcomeEmail(user_id=user.id))
"""

from relay.domain.retry import Dead, Never, RetryLater
from tasks.corrections import FailedTask, on_failed
from tasks.outbox import schedule
from tasks.registry import TaskContext, task

__all__ = ["Dead", "FailedTask", "Never", "RetryLater", "TaskContext", "on_failed", "schedule", "task"]
