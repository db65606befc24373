"""ramet completion: print a script that lets a shell complete ramet commands."""

from __future__ import annotations

import argparse

import shtab

from ramet.cli.parsing import Commands, new_command

_EXAMPLES = """\
examples:
  source <(ramet completion bash)             in ~/.bashrc, or for this shell only
  source <(ramet completion zsh)              in ~/.zshrc, after compinit
  ramet completion fish > ~/.config/fish/completions/ramet.fish

Faster than `source` at each start of a shell, but to be repeated after an upgrade:
  ramet completion bash > ~/.local/share/bash-completion/completions/ramet
  ramet completion zsh > ~/.zfunc/_ramet      with `fpath=(~/.zfunc $fpath)` before compinit in ~/.zshrc

Ids of sandboxes are completed too: they are asked for at the server (RAMET_URL).
"""
# Of arguments that name something on this machine. zsh and fish offer no files by themselves.
_COMPLETED_BY_METAVAR = {
    "SCRIPT": shtab.FILE,
    "ARGUMENTS": shtab.FILE,
    "FILE[:PATH]": shtab.FILE,
    "DIR": shtab.DIRECTORY,
    "HOST:SANDBOX[:rw]": shtab.DIRECTORY,
}
# shtab's script for zsh registers itself after `eval`; otherwise it takes itself for an autoloaded function, also where
# it is read with `source`.
_ZSH_EVALUATED, _ZSH_READ = "$zsh_eval_context[-1] == eval", "$zsh_eval_context[-1] == (eval|file)"


def add_command(commands: Commands, ramet: argparse.ArgumentParser) -> None:
    parser = new_command(commands, "completion", "print a completion script for a shell", __doc__, _EXAMPLES)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell to complete for")
    parser.set_defaults(run=lambda chosen: run(chosen, ramet))


def run(chosen: argparse.Namespace, ramet: argparse.ArgumentParser) -> int:
    _complete_files(ramet)
    script = shtab.complete(ramet, chosen.shell)
    print(script.replace(_ZSH_EVALUATED, _ZSH_READ))
    return 0


def _complete_files(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _complete_files(below)
        elif action.metavar in _COMPLETED_BY_METAVAR:
            action.complete = _COMPLETED_BY_METAVAR[action.metavar]  # type: ignore[attr-defined]
