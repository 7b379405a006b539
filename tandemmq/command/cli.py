"""The `tandem` command: parses arguments and calls one module per command.

Command modules are imported when their command runs, not before: a broker starts without the
client, `tandem send` without the broker. That is the one place where a module is imported by name.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq import __version__
from tandemmq.backup.words import backup_arguments, restore_arguments
from tandemmq.command.exits import CommandFailed, ExitCode
from tandemmq.command.extras import need_server
from tandemmq.command.hints import check_words

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
CONSOLE_PORT: Final = 9_880
LOCAL_DIRECTORY: Final = Path("tandem-data")
ADMIN: Final = "admin"
CHAOS: Final = "chaos"
LOG_FORMATS: Final = ("text", "json")
GREETING: Final = """TandemMQ: a message broker that speaks RocketMQ's protocol and disk format.

  tandem local up --mode sync        a replicated cluster on this machine
  tandem send Orders "order 17"      send a message
  tandem tail Orders --from first    see what is there, and what comes
  tandem admin clusterList           mqadmin's commands, by their own names
  tandem --help                      everything else"""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Examples as they are written; room for the longest name beside its text."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


@dataclass(frozen=True, slots=True)
class _Command:
    """One subcommand: `function` of tandemmq.`module` takes the arguments, returns an ExitCode.

    server  whether it needs more than a light install has: the extra `server`
    """

    name: str
    module: str
    function: str
    summary: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    server: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (tandemmq.command.exits.ExitCode)."""
    if sys.flags.optimize:
        print(
            "tandem: python -O removes the assertions that guard the log; start without it",
            file=sys.stderr,
        )
        return ExitCode.OPTIMIZED
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run(given)
        sys.stdout.flush()
        return code
    except CommandFailed as problem:
        print(f"tandem: {problem}", file=sys.stderr)
        return problem.code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has enough (`tandem tail T | head`); keep Python from complaining
        # at exit
        _give_up_output()
        return ExitCode.OK
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        _give_up_output()
        print(f"tandem: the output cannot be written: {problem.strerror}", file=sys.stderr)
        return ExitCode.FAILED


def _give_up_output() -> None:
    """Keep Python from writing the rest, and from complaining, at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    if not argv:
        print(GREETING)
        return ExitCode.OK
    if argv == ["--version"]:
        print(f"tandem {__version__}")
        return ExitCode.OK
    if argv[0] == ADMIN:  # mqadmin's names and options: a parser of its own
        code: int = importlib.import_module("tandemmq.admin.commands").run_admin(argv[1:])
        return code
    if argv[0] == CHAOS:
        return _run_chaos(argv[1:])
    parser = command_parser()
    check_words(parser, argv)
    arguments, left = parser.parse_known_args(argv)
    if len(left) == 1 and not left[0].startswith("-") and getattr(arguments, "body", "") is None:
        arguments.body = left.pop()  # tandem send TOPIC --tag x BODY
    if left:
        parser.error(f"too many words: {' '.join(left)}")
    if arguments.server:
        need_server(arguments.server)
    module = importlib.import_module(f"tandemmq.{arguments.module}")
    code = getattr(module, arguments.function)(arguments)
    return code


def _run_chaos(argv: list[str]) -> int:
    """tandemmq.chaos is in the source tree, and not in what is installed from a wheel."""
    need_server("tandem chaos")
    try:
        module = importlib.import_module("tandemmq.chaos.scenarios.command")
    except ModuleNotFoundError as problem:
        if problem.name is None or not problem.name.startswith("tandemmq.chaos"):
            raise
        raise CommandFailed(
            "tandem chaos needs the source tree: clone it, `make setup`, and run its .venv/bin/tandem",
            ExitCode.MISSING,
        ) from None
    code: int = module.main(argv)
    return code


def command_parser() -> argparse.ArgumentParser:
    """Every command but the options of `tandem admin NAME`, which tandemmq.admin.commands knows."""
    parser = argparse.ArgumentParser(
        prog="tandem",
        description="TandemMQ: a message broker that speaks RocketMQ's protocol and disk format.",
        epilog="example:\n  tandem local up --mode sync && tandem send Orders hello\n"
        "  tandem tail Orders --from first --until-end\n\nexit codes:\n"
        + "\n".join(f"  {code.value:3}  {code.name}" for code in ExitCode),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        _add(commands, command)
    # no help: the scripts of `completion` run it
    hidden = commands.add_parser("complete", epilog="example:\n  tandem complete topics")
    _complete(hidden)
    hidden.set_defaults(module="command.naming", function="run_complete", server="")
    commands.add_parser(ADMIN, help="mqadmin's commands, by their own names", add_help=False)
    commands.add_parser(CHAOS, help="break a cluster on purpose, judge it, report", add_help=False)
    local = commands.add_parser(
        "local",
        help="a whole cluster on this machine, with or without replicas",
        description="A whole cluster as background processes of this machine: a name server and "
        "two masters or, with --mode, two groups of a master and a slave with a controller.",
        epilog="example:\n  tandem local up && tandem send Hello world && tandem local down\n"
        "  tandem local up --mode sync && tandem local kill broker-a-0 && tandem local status",
        formatter_class=HelpFormatter,
    )
    actions = local.add_subparsers(title="actions", metavar="ACTION", required=True)
    for action in LOCAL_ACTIONS:
        _add(actions, action)
    return parser


def _add(
    group: argparse._SubParsersAction[argparse.ArgumentParser],
    command: _Command,
) -> None:
    parser = group.add_parser(
        command.name,
        help=command.summary,
        description=command.summary[0].upper() + command.summary[1:] + ".",
        epilog=f"example:\n{command.examples}",
        formatter_class=HelpFormatter,
    )
    command.arguments(parser)
    parser.set_defaults(
        module=command.module,
        function=command.function,
        server=parser.prog if command.server else "",
    )


# Arguments, by command


def _logging(parser: argparse.ArgumentParser) -> None:
    levels = ["DEBUG", "INFO", "WARNING", "ERROR"]
    parser.add_argument("--log-level", choices=levels, default="INFO", help="default INFO")
    parser.add_argument(
        "--log-format", choices=LOG_FORMATS, default=_log_format(),
        help="text: a phrase and key=value; json: one object per line. Default: TANDEM_LOG_FORMAT of the environment, "
        "else text",
    )  # fmt: skip
    parser.add_argument("--log-json", action="store_true", help="the same as --log-format json")
    parser.add_argument(
        "--log-file", type=Path, metavar="FILE", help="instead of stderr; rotated, see the next two"
    )
    parser.add_argument(
        "--log-file-bytes", type=int, default=64 << 20, metavar="N",
        help="FILE becomes FILE.1 when it has so many, default 64 MiB",
    )  # fmt: skip
    parser.add_argument(
        "--log-files",
        type=int,
        default=8,
        metavar="N",
        help="so many are kept beside it, default 8",
    )


def _log_format() -> str:
    """Of the environment, which can be set where a container's command is fixed. A word that is none is text."""
    told = os.environ.get("TANDEM_LOG_FORMAT", "")
    return told if told in LOG_FORMATS else LOG_FORMATS[0]


def _settings(parser: argparse.ArgumentParser, file: str) -> None:
    parser.add_argument(
        "--make-token", action="store_true",
        help="make the file that httpTokenFile names, with a new token, where there is none",
    )  # fmt: skip
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help=f"RocketMQ's {file}")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that wins over the file; may be repeated",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="serve although nothing checks who connects: on other addresses than loopback, and with settings that "
        "switch on access control",
    )
    _logging(parser)


def _nameserver(parser: argparse.ArgumentParser) -> None:
    _settings(parser, "namesrv.conf")
    parser.add_argument("-p", "--port", type=int, help="listenPort, default 9876")


def _controller(parser: argparse.ArgumentParser) -> None:
    _settings(parser, "controller.conf")


def _broker(parser: argparse.ArgumentParser) -> None:
    _settings(parser, "broker.conf")
    parser.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT[;HOST:PORT]", help="name servers to register with"
    )


def reach_options(parser: argparse.ArgumentParser) -> None:
    """How a client reaches the cluster: tandemmq.command.reach reads these."""
    parser.add_argument(
        "-n",
        "--namesrv",
        metavar="HOST:PORT[;HOST:PORT]",
        help="name servers; default NAMESRV_ADDR of the environment, else that of the cluster in "
        f"./tandem-data, else {DEFAULT_NAME_SERVER}; an access key comes from TANDEM_ACCESS_KEY and TANDEM_SECRET_KEY",
    )
    parser.add_argument(
        "--credentials",
        metavar="FILE",
        help="holds accessKey and secretKey, as RocketMQ's tools.yml; default the environment's TANDEM_CREDENTIALS, "
        "then its keys, then $ROCKETMQ_HOME/conf/tools.yml",
    )
    parser.add_argument("--tls", action="store_true", help="encrypt, trusting any certificate")
    parser.add_argument("--ca", metavar="FILE", help="encrypt, trusting these certificates (PEM)")
    parser.add_argument("--cert", metavar="FILE", help="encrypt, showing this certificate (PEM)")
    parser.add_argument(
        "--cert-key", metavar="FILE", help="of --cert, unencrypted; default: it is in the same file"
    )


def json_option(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="output for programs")


def _send(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "body", metavar="BODY", nargs="?", help="the message; without it, each line of stdin is one"
    )
    parser.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="the whole file is one message; may be repeated",
    )
    parser.add_argument("--lines", action="store_true", help="each line of --file is a message")
    parser.add_argument("--hex", action="store_true", help="BODY and stdin are hexadecimal digits")
    parser.add_argument("--key", action="append", default=[], help="business key; may be repeated")
    parser.add_argument("--tag", help="tag that consumers filter by")
    parser.add_argument(
        "--property", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    parser.add_argument(
        "--delay-level", type=int, default=0, metavar="N", help="deliver later: 1 is 1 s, 3 is 10 s"
    )
    parser.add_argument(
        "--delay-s", type=float, default=0.0, metavar="S", help="deliver so many seconds later"
    )
    parser.add_argument("--queue", metavar="BROKER:ID", help="to this queue, e.g. broker-a:0")
    parser.add_argument("--group", default="TANDEM_SEND", help="producer group")
    reach_options(parser)
    json_option(parser)


def _tail(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--from",
        dest="start",
        default="last",
        metavar="first|last|TIME",
        help="TIME: 2025-09-19T08:30:00 (local), milliseconds since 1970, or 10m for 10m ago",
    )
    parser.add_argument("--to", dest="end", metavar="TIME", help="stop at what was stored then")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--tag", default="*", metavar="EXPRESSION", help='e.g. "TagA || TagB"')
    chosen.add_argument("--sql", metavar="EXPRESSION", help="by properties: \"a > 5 AND b = 'x'\"")
    parser.add_argument("--key", action="append", default=[], help="only with this key")
    parser.add_argument(
        "--property", action="append", default=[], metavar="NAME[=VALUE]", help="only with this"
    )
    parser.add_argument(
        "--queue", action="append", default=[], metavar="BROKER[:ID]", help="only of this queue"
    )
    parser.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    parser.add_argument(
        "--until-end", action="store_true", help="stop at the end that each queue has now"
    )
    parser.add_argument(
        "--body",
        dest="style",
        choices=["auto", "text", "hex", "json", "none"],
        default="auto",
        help="how to show bodies; auto: text, or hex when it is none. They come decompressed",
    )
    parser.add_argument("--hex", action="store_true", help="the same as --body hex")
    parser.add_argument("--verbose", action="store_true", help="ids, hosts, properties, flags too")
    reach_options(parser)
    json_option(parser)


def _bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", default="TandemBench", help="default TandemBench; made if needed"
    )
    parser.add_argument("--count", type=int, default=100_000, help="messages, default 100000")
    parser.add_argument("--seconds", type=float, metavar="S", help="for so long instead of --count")
    parser.add_argument("--size", type=int, default=1024, metavar="BYTES", help="default 1024")
    parser.add_argument(
        "--in-flight", type=int, default=256, metavar="N", help="sends under way, default 256"
    )
    parser.add_argument(
        "--rate", type=float, metavar="N", help="messages a second; default: as fast as it goes"
    )
    parser.add_argument("--queues", type=int, default=4, help="per broker, default 4")
    parser.add_argument("--no-read", action="store_true", help="send only, read nothing back")
    reach_options(parser)
    json_option(parser)


def _console(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-p", "--port", type=int, default=CONSOLE_PORT, help=f"default {CONSOLE_PORT}"
    )
    parser.add_argument("--host", default="", help="where to listen, default 127.0.0.1")
    parser.add_argument(
        "--name", action="append", default=[], metavar="HOST",
        help="what browsers may call it besides its addresses, e.g. behind a proxy; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the token that who acts must show; without it a new one is printed at the start",
    )
    parser.add_argument(
        "--reports", type=Path, metavar="DIR", help="reports of audits and campaigns to link"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="listen on other addresses than loopback"
    )
    reach_options(parser)
    _logging(parser)


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])


def _complete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=["topics", "groups", "processes"])
    reach_options(parser)


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        help="storePathRootDir of a broker, or a file in its folder setaside",
    )
    json_option(parser)


def _health(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address",
        metavar="HOST:PORT",
        nargs="?",
        help="default: whoever listens on this machine at 10911 (broker), 9876 (name server) or 9878 (controller)",
    )


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, action="append", metavar="DIR",
        help="where a store is or will be; may be repeated. Default: ./tandem-data, /data, /var/lib/tandemmq",
    )  # fmt: skip
    parser.add_argument("--host-only", action="store_true", help="ask no cluster")
    parser.add_argument("--cluster-only", action="store_true", help="do not look at this machine")
    reach_options(parser)
    json_option(parser)


def _rolling_restart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--with", dest="command", required=True, metavar="COMMAND",
        help="restarts one server here; {role} {name} {id} {address} {host} {port} are put in, and no shell reads it",
    )  # fmt: skip
    parser.add_argument(
        "-b", "--brokerName", dest="group", action="append", metavar="BROKER_NAME",
        help="only this group; may be repeated. Default: all",
    )  # fmt: skip
    parser.add_argument(
        "--name-servers",
        action="store_true",
        help="name servers, too, before the brokers, one after the other",
    )
    _rolling_limits(parser)
    reach_options(parser)
    json_option(parser)


def _hand_over(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address", metavar="HOST:PORT", nargs="?", default="127.0.0.1:10911",
        help="the broker that is to be stopped, default 127.0.0.1:10911; its name servers are asked if -n names none",
    )  # fmt: skip
    reach_options(parser)


def _rolling_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="for one server to be back, default 120",
    )
    parser.add_argument(
        "--drain", type=float, default=35.0, metavar="S",
        help="so long producers are kept away from a master whom nobody can follow, before its restart; default 35, as "
        "clients ask for routes every 30",
    )  # fmt: skip


def _local_rolling_restart(parser: argparse.ArgumentParser) -> None:
    _directory(parser)
    parser.add_argument(
        "--name-server", action="store_true", help="the name server, too, before the brokers"
    )
    _rolling_limits(parser)
    json_option(parser)


def _check_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument(
        "--role",
        choices=["broker", "nameserver", "controller"],
        help="default: what the file's name says, else broker",
    )
    parser.add_argument(
        "-n", "--namesrv", metavar="HOST:PORT[;HOST:PORT]", help="as the broker will be given it"
    )
    parser.add_argument("--insecure", action="store_true", help="as the server will be given it")
    json_option(parser)


def _audit(parser: argparse.ArgumentParser) -> None:
    """The audit has commands and exit codes of its own: all its words go to tandemmq.audit.commands as they are."""
    parser.prefix_chars = "\0"
    parser.add_argument("words", nargs=argparse.REMAINDER, help="tandem audit --help tells them")


def _directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        type=Path,
        default=LOCAL_DIRECTORY,
        metavar="DIR",
        help="where the cluster keeps settings, stores and logs; default ./tandem-data",
    )


def _up(parser: argparse.ArgumentParser) -> None:
    _directory(parser)
    parser.add_argument(
        "--mode",
        choices=["sync", "async"],
        help="two groups, each a master and a slave, and a controller in the name server. sync: a "
        "message is acknowledged when both have it; async: when the master has it, and a slave that "
        "takes over may lack the last ones. Without it: two masters alone",
    )
    parser.add_argument(
        "--namesrv-port",
        type=int,
        help="default 9876, or the next that is free, and kept; the controller's is 2 above",
    )
    parser.add_argument(
        "--broker-port",
        type=int,
        help="of the first broker, default 10911 or the next that is free, and kept; each further "
        "one: 10 more. Each also takes the port 2 below and the one above, with --mode the two above",
    )
    json_option(parser)


def _down(parser: argparse.ArgumentParser) -> None:
    _directory(parser)
    parser.add_argument(
        "--timeout", type=float, default=15.0, metavar="S", help="seconds to wait, default 15"
    )
    parser.add_argument("--kill", action="store_true", help="kill what has not stopped by then")
    json_option(parser)


def _kill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=_PROCESS)
    _directory(parser)
    parser.add_argument(
        "--signal",
        choices=["KILL", "STOP", "CONT", "TERM"],
        default="KILL",
        help="KILL (default): as a crash; STOP: freeze it, as a machine that hangs; CONT: let it go "
        "on; TERM: stop it cleanly",
    )
    json_option(parser)


_PROCESS: Final = "as `tandem local status` names it, e.g. namesrv, broker-a or broker-a-0"


def _start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=_PROCESS)
    _directory(parser)
    json_option(parser)


def _status(parser: argparse.ArgumentParser) -> None:
    _directory(parser)
    parser.add_argument("--watch", action="store_true", help="again and again until Ctrl-C")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="of --watch, default 1"
    )
    json_option(parser)


def _logs(parser: argparse.ArgumentParser) -> None:
    _directory(parser)
    parser.add_argument("name", metavar="NAME", nargs="?", help=f"{_PROCESS}; default all")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="of each, default 20")
    parser.add_argument("-f", "--follow", action="store_true", help="and what comes, until Ctrl-C")


COMMANDS: Final = (
    _Command(
        "nameserver",
        "command.serving",
        "run_nameserver",
        "run a name server in the foreground until SIGTERM",
        "  tandem nameserver -c namesrv.conf -p 9876",
        _nameserver,
        server=True,
    ),
    _Command(
        "controller",
        "command.serving",
        "run_controller",
        "run a controller, which decides who is master, in the foreground until SIGTERM",
        "  tandem controller -c controller.conf\n"
        "  tandem nameserver --set enableControllerInNamesrv=true    (both in one process)",
        _controller,
        server=True,
    ),
    _Command(
        "broker",
        "command.serving",
        "run_broker",
        "run a broker in the foreground until SIGTERM",
        "  tandem broker -n 127.0.0.1:9876 -c broker.conf --set flushDiskType=SYNC_FLUSH",
        _broker,
        server=True,
    ),
    _Command(
        "send",
        "command.send",
        "run_send",
        "send messages from the command line, a file or stdin",
        '  tandem send Orders "order 17" --key order-17 --tag created\n'
        "  seq 1000 | tandem send Orders --property source=test\n"
        "  tandem send Pictures --file a.png --file b.png",
        _send,
    ),
    _Command(
        "tail",
        "command.tail",
        "run_tail",
        "print a topic's messages as they come, without touching any group",
        "  tandem tail Orders --from first --count 10\n"
        '  tandem tail Orders --tag "created || paid" --json\n'
        "  tandem tail Orders --from 1h --to 30m --key order-17 --verbose",
        _tail,
    ),
    _Command(
        "bench",
        "command.load",
        "run_bench",
        "send as fast as it goes, read it back, say how long it took",
        "  tandem bench --count 200000 --size 512\n  tandem bench --seconds 30 --rate 5000 --json",
        _bench,
    ),
    _Command(
        "inspect",
        "command.inspection",
        "run_inspect",
        "say what is in a store directory and whether it is sound; read-only",
        "  tandem inspect ./tandem-data/store/broker-a",
        _inspect,
        server=True,
    ),
    _Command(
        "audit",
        "audit.commands",
        "run_audit",
        "find and explain differences between replicas of a broker's log",
        "  tandem audit run ./store/master ./store/slave",
        _audit,
    ),
    _Command(
        "backup",
        "backup.commands",
        "run_backup",
        "copy a broker's store while it runs, increment by increment; list and verify what was copied",
        "  tandem backup run --namesrv 10.0.0.1:9876 --to /backup --token-file http.token\n"
        "  tandem backup list /backup",
        backup_arguments,
        server=True,
    ),
    _Command(
        "restore",
        "backup.commands",
        "run_restore",
        "make a store out of a backup, up to a point in time",
        "  tandem restore /backup --into /data/store\n"
        "  tandem restore s3://bucket/tandem --into /data/store --until 2025-09-19T08:30:00",
        restore_arguments,
        server=True,
    ),
    _Command(
        "health",
        "command.health",
        "run_health",
        "ask a server whether it serves: for health checks of containers and supervisors",
        "  tandem health 127.0.0.1:10911",
        _health,
    ),
    _Command(
        "doctor",
        "doctor.commands",
        "run_doctor",
        "say what looks wrong on this machine and in a running cluster, and what to do",
        "  tandem doctor --data /var/lib/tandemmq\n"
        "  tandem doctor --namesrv 10.0.0.1:9876 --cluster-only --json",
        _doctor,
    ),
    _Command(
        "rolling-restart",
        "rolling.commands",
        "run_rolling_restart",
        "restart every broker in the order of their roles, without a failed send",
        "  tandem rolling-restart --with 'ssh {host} sudo systemctl restart tandemmq-broker@{name}'\n"
        "  tandem rolling-restart --with 'deploy/restart/compose.sh {host}' -b broker-a",
        _rolling_restart,
    ),
    _Command(
        "hand-over",
        "rolling.handover",
        "run_hand_over",
        "let another member lead a broker's group before the broker is stopped",
        "  tandem hand-over 127.0.0.1:10911 && systemctl stop tandemmq-broker@broker-a",
        _hand_over,
    ),
    _Command(
        "check-config",
        "command.checking",
        "run_check_config",
        "check a settings file without starting anything",
        "  tandem check-config broker.conf",
        _check_config,
        server=True,
    ),
    _Command(
        "console",
        "console.serving",
        "run_console",
        "serve pages for a browser: the cluster, topics, groups, messages, dead letters, failovers",
        "  tandem console -n 127.0.0.1:9876 --port 9880\n"
        "  tandem console --token-file console.token --reports ./audits",
        _console,
        server=True,
    ),
    _Command(
        "completion",
        "command.completion",
        "run_completion",
        "print what makes a shell complete commands and options",
        "  tandem completion bash > ~/.local/share/bash-completion/completions/tandem\n"
        "  tandem completion zsh > ~/.zfunc/_tandem\n"
        "  tandem completion fish > ~/.config/fish/completions/tandem.fish",
        _completion,
    ),
)


def _run_local(parser: argparse.ArgumentParser) -> None:
    _up(parser)
    parser.add_argument(
        "--groups", type=int, choices=[1, 2], default=1, help="broker names, default 1"
    )
    parser.add_argument(
        "--host",
        metavar="HOST",
        help="what clients reach the cluster by, as from outside a container; it listens on every address then, and "
        "nothing checks who connects. Default: 127.0.0.1, and only there",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of every broker of a new cluster; may be repeated",
    )
    parser.add_argument(
        "--temporary", action="store_true", help="in a new directory that is removed at the end"
    )
    parser.add_argument(
        "--attached",
        action="store_true",
        help="for programs: end when stdin ends; a line `start NAME` there brings a member back",
    )


LOCAL_ACTIONS: Final = (
    _Command(
        "up",
        "local.commands",
        "run_up",
        "start the cluster and wait until it is ready",
        "  tandem local up --dir ./tandem-data\n  tandem local up --mode sync",
        _up,
        server=True,
    ),
    _Command(
        "run",
        "local.foreground",
        "run_foreground",
        "run the cluster in the foreground until SIGTERM, which stops all of it",
        "  tandem local run --dir ./tandem-data\n  tandem local run --temporary --mode sync",
        _run_local,
        server=True,
    ),
    _Command(
        "down",
        "local.commands",
        "run_down",
        "stop the cluster; data stays",
        "  tandem local down",
        _down,
    ),
    _Command(
        "status",
        "local.commands",
        "run_status",
        "say which processes run and what as: roles, epochs, lag, who is in sync",
        "  tandem local status --watch",
        _status,
    ),
    _Command(
        "kill",
        "local.commands",
        "run_kill",
        "kill -9 one process, or freeze it, to see what happens",
        "  tandem local kill broker-a-0 && tandem local status\n"
        "  tandem local kill broker-a-0 --signal STOP",
        _kill,
    ),
    _Command(
        "start",
        "local.commands",
        "run_start",
        "start one process again and wait until it takes part",
        "  tandem local start broker-a-0",
        _start,
        server=True,
    ),
    _Command(
        "rolling-restart",
        "rolling.local",
        "run_local",
        "restart every broker in the order of their roles, without a failed send",
        "  tandem local rolling-restart",
        _local_rolling_restart,
        server=True,
    ),
    _Command(
        "logs",
        "local.commands",
        "run_logs",
        "print the end of the processes' logs",
        "  tandem local logs broker-a --lines 50",
        _logs,
    ),
)
