"""How does the proxy speak HTTP/1? Heads are read strictly and written anew: a server reads what was decided on.

May import the rest of ``network``. Start reading at ``forwarding``; ``heads`` and ``framing`` say what is refused.
"""
