"""The removal of slots that no claim holds any more; it never touches a claimed pod."""
