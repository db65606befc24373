"""The model behind the gateway: how it is asked, what it is told, and how its answers are read.

Trusts nothing that it says. Start with ``sampler.py``.
"""
