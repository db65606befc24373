"""How a sandbox takes names and files of a relative into itself. Start at ``take.py``, then ``names.py``."""
