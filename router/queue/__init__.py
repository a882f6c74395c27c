"""The queue: requests wait here, where they can still go to any pod, until their pod has room."""
