"""How the outcome of a cell becomes an answer: JSON, lines of JSON, and what is counted of it."""
