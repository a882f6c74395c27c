"""The inference APIs and their table by path; the chats of engines are beside it."""
