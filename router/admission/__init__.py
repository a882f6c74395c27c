"""When the work on a call begins, and which calls are refused; `router.calls.intake` reads messages."""
