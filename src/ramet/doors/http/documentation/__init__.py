"""The server explains itself: its OpenAPI document, and a page that lists every route. Start at ``pages``."""
