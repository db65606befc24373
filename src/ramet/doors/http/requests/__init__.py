"""One HTTP request, from its head to its answer: reading bodies, queries and ranges strictly, errors, disconnects.

Start at ``application``.
"""
