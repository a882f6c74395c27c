"""When the work on a call begins, and which calls are refused; `router.api.intake` reads messages."""
