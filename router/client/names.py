"""The names in calls: a pod's, a pick's, a session's. Protobuf refuses others without the field."""


def check_names(**names: object) -> None:
    """Raise TypeError for a name that is neither a text nor left out."""
    for field, name in names.items():
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{field} is of type {type(name).__name__}, not str")


def check_pods(pods: object) -> None:
    """Raise TypeError for one text in place of a list of pods; each of its characters would be a pod."""
    if isinstance(pods, str):
        raise TypeError("pods is of type str; give a list of pods' ids")
