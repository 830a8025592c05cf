"""``llmprof completion``: scripts that complete commands, options and their values in a shell."""

import argparse
import shlex
from argparse import Namespace
from collections.abc import Mapping

from llmprof.cli.output import Terminal, to_json

_BASH = """_llmprof() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" command="" word known=""
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}"; do
        [[ "$word" != -* ]] && {{ command="$word"; break; }}
    done
    case "$command" in
        "") known={commands} ;;
{options}
    esac
    case "$command $prev" in
{values}
    esac
    if [[ -z "$command" || "$cur" == -* ]]; then
        COMPREPLY=($(compgen -W "$known" -- "$cur"))
    fi
    if [[ ${{#COMPREPLY[@]}} -eq 0 ]]; then
        COMPREPLY=($(compgen -f -- "$cur"))
    fi
}}
complete -o filenames -F _llmprof llmprof"""  # noqa: E501
_IN_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
"""Before the script for bash, which zsh then understands."""


def completion(args: Namespace, terminal: Terminal) -> str:
    """Script for a shell, from the options of all commands."""
    from llmprof.cli.main import commands_of, parser

    top = parser()
    commands = commands_of(top)
    script = _fish(top, commands) if args.shell == "fish" else _bash(commands)
    script = _IN_ZSH + script if args.shell == "zsh" else script
    return to_json({"script": script}) if args.json else script


def _choices(action: argparse.Action) -> list[str]:
    return [str(choice) for choice in action.choices or ()]


def _bash(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    flags = {
        name: " ".join(flag for one in sub._actions for flag in one.option_strings)
        for name, sub in commands.items()
    }
    options = [
        f"        {name}) known={shlex.quote(of_command)} ;;" for name, of_command in flags.items()
    ]
    reply = 'COMPREPLY=($(compgen -W {} -- "$cur")); return'
    values = [
        f"        {shlex.quote(f'{name} {flag or name}')})"
        f" {reply.format(shlex.quote(' '.join(choices)))} ;;"
        for name, sub in commands.items()
        for action in sub._actions
        if (choices := _choices(action))
        for flag in action.option_strings or [""]
    ]
    names = shlex.quote(" ".join([*commands, "--help", "--version"]))
    return _BASH.format(commands=names, options="\n".join(options), values="\n".join(values))


def _fish(top: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = []
    for name, sub in commands.items():
        words = shlex.quote(sub.description or "")
        lines.append(f"complete -c llmprof -n __fish_use_subcommand -a {name} -d {words}")
        condition = shlex.quote(f"__fish_seen_subcommand_from {name}")
        for action in sub._actions:
            parts = ["complete -c llmprof -n", condition]
            parts += [
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in action.option_strings
            ]
            choices = _choices(action)
            if choices:
                parts.append(f"-xa {shlex.quote(' '.join(choices))}")
            elif action.option_strings and action.nargs != 0 and action.metavar:
                parts.append("-r")
            if action.option_strings or choices:
                said = (action.help or "").replace("%%", "%")
                lines.append(" ".join([*parts, f"-d {shlex.quote(' '.join(said.split()))}"]))
    return "\n".join(lines)
