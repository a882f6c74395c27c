"""Where the processes of one router keep their states: a file each."""

from router.config.schema import Config


def state_files(config: Config) -> list[str]:
    """Return the state files of all processes; none where nothing is saved."""
    name, processes = config.index.state_file, config.server.processes
    if not name or processes == 1:
        return [name] if name else []
    return [f"{name}.{number}" for number in range(processes)]
