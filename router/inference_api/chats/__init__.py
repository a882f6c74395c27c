"""Turns bodies into the chats that each engine makes of them; knows no paths."""
