"""Running what a row asks for: claim it, call the function or the service, settle it, finish it.

Rows are inbox messages and tasks. What they do in their own way is a `rows.Rows`. Three runners share everything
else: `runners.RunOnLoop` for services and coroutines, `runners.RunInThread` for plain functions, `chunk` for many
messages at a time.
"""
