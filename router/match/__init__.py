"""What each rank holds of a prompt: the look-up and the beliefs; no load, and no choice is made."""
