"""Names the state files of one router's processes: each process has its own."""

from warmpath.router.config.schema import Config


def state_files(config: Config) -> list[str]:
    """Return the state files of all processes; an empty list if no state is saved."""
    name, processes = config.index.state_file, config.server.processes
    if not name or processes == 1:
        return [name] if name else []
    return [state_file_of(name, number) for number in range(processes)]


def state_file_of(name: str, process: int) -> str:
    """Return the state file of one of several processes."""
    return f"{name}.{process}"
