"""Sandboxes as tools of agent frameworks, one module for each: ``ramet.integrations.langchain`` and so on.

They use the public package ``ramet`` and nothing else of it, and import their framework only when they are imported.
Start reading at ``toolbox``: what the tools are; ``results``: how a model reads what they did.
"""
