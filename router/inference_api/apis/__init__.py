"""The inference APIs, one a module, and their table by path; the chats of engines are beside it."""
