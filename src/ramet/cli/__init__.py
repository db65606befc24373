"""What a person types. Imports anything below; nothing imports it. Start at ``main``."""
