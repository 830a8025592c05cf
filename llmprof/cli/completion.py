"""``llmprof completion``: scripts that complete commands, options and their values in a shell."""

import argparse
import shlex
from argparse import Namespace
from collections.abc import Mapping

from llmprof.cli.output import Terminal, to_json

SHELLS = ("bash", "zsh", "fish")

_BASH = """_llmprof() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" command="" word words=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [[ "$word" != -* ]] && {{ command="$word"; break; }}
    done
    case "$command" in
        "") words={commands} ;;
{options}
    esac
    case "$command $prev" in
{values}
    esac
    if [[ -z "$command" || "$cur" == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
    fi
    if [[ ${{#COMPREPLY[@]}} -eq 0 ]]; then
        COMPREPLY=($(compgen -f -- "$cur"))
    fi
}}
complete -o filenames -F _llmprof llmprof"""
_ZSH = """#compdef llmprof
_llmprof() {{
    local command="" word
    local -a given
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        [[ "$word" != -* ]] && {{ command="$word"; break; }}
    done
    case "$command" in
        "") given=({commands}) ;;
{options}
    esac
    case "$command ${{words[CURRENT-1]}}" in
{values}
    esac
    if [[ -z "$command" || "${{words[CURRENT]}}" == -* ]]; then
        compadd -- "${{given[@]}}"
    fi
    [[ "${{words[CURRENT]}}" == -* ]] || _files
}}
compdef _llmprof llmprof"""


def completion(args: Namespace, terminal: Terminal) -> str:
    """Script for a shell, from the options of all commands."""
    from llmprof.cli.main import commands_of, parser

    top = parser()
    commands = commands_of(top)
    script = _fish(top, commands) if args.shell == "fish" else _script(args.shell, commands)
    return to_json({"script": script}) if args.json else script


def _flags(sub: argparse.ArgumentParser) -> list[str]:
    return [flag for action in sub._actions for flag in action.option_strings]


def _choices(action: argparse.Action) -> list[str]:
    return [str(choice) for choice in action.choices or ()]


def _script(shell: str, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    quoted = shlex.quote if shell == "bash" else str
    words = "words={}" if shell == "bash" else "given=({})"
    reply = 'COMPREPLY=($(compgen -W {} -- "$cur")); return' if shell == "bash" else "compadd -- {}; return"
    options = [f"        {name}) {words.format(quoted(' '.join(_flags(sub))))} ;;" for name, sub in commands.items()]
    values = [
        f"        {shlex.quote(f'{name} {flag or name}')}) {reply.format(quoted(' '.join(choices)))} ;;"
        for name, sub in commands.items()
        for action in sub._actions
        if (choices := _choices(action))
        for flag in action.option_strings or [""]
    ]
    names = quoted(" ".join([*commands, "--help", "--version"]))
    form = _BASH if shell == "bash" else _ZSH
    return form.format(commands=names, options="\n".join(options), values="\n".join(values))


def _fish(top: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = []
    for name, sub in commands.items():
        words = shlex.quote(sub.description or "")
        lines.append(f"complete -c llmprof -n __fish_use_subcommand -a {name} -d {words}")
        condition = shlex.quote(f"__fish_seen_subcommand_from {name}")
        for action in sub._actions:
            parts = ["complete -c llmprof -n", condition]
            parts += [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in action.option_strings]
            choices = _choices(action)
            if choices:
                parts.append(f"-xa {shlex.quote(' '.join(choices))}")
            elif action.option_strings and action.nargs != 0 and action.metavar:
                parts.append("-r")
            if action.option_strings or choices:
                said = (action.help or "").replace("%%", "%")
                lines.append(" ".join([*parts, f"-d {shlex.quote(' '.join(said.split()))}"]))
    return "\n".join(lines)
