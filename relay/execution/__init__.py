"""Running what a row asks for: claim it, call the function or the service, decide, settle.

`runners` is this sequence. `rows` says what a kind of rows provides for it: messages, tasks, chunks of messages,
cron runs. `lease` keeps a claim, `prefetch` claims ahead, `calls` and `batch` call Python functions.
"""
