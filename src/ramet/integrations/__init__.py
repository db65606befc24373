"""Sandboxes as tools of agent frameworks, one module for each: ``ramet.integrations.langchain`` and so on.

The modules use the public package ``ramet`` only. Each imports its framework, so nothing imports them for you.
Start reading at ``toolbox`` (the tools), then ``results`` (the text that a model gets back).
"""
