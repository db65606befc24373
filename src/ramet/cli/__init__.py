"""The command line. Imports anything below; nothing imports it. Start at ``main``."""
