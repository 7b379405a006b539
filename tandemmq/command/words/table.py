"""Every command but `admin`, `chaos` and `local`, in the order of `tandem --help`."""

from __future__ import annotations

from typing import Final

from tandemmq.backup.words import backup_arguments, restore_arguments
from tandemmq.command.words import clients, operating, servers
from tandemmq.command.words.command import Command

COMMANDS: Final = (
    Command(
        "nameserver",
        "command.serving",
        "run_nameserver",
        "run a name server in the foreground until SIGTERM",
        "  tandem nameserver -c namesrv.conf -p 9876",
        servers.nameserver_options,
        server=True,
    ),
    Command(
        "controller",
        "command.serving",
        "run_controller",
        "run a controller, which decides who is master, in the foreground until SIGTERM",
        "  tandem controller -c controller.conf\n"
        "  tandem nameserver --set enableControllerInNamesrv=true    (both in one process)",
        servers.controller_options,
        server=True,
    ),
    Command(
        "broker",
        "command.serving",
        "run_broker",
        "run a broker in the foreground until SIGTERM",
        "  tandem broker -n 127.0.0.1:9876 -c broker.conf --set flushDiskType=SYNC_FLUSH",
        servers.broker_options,
        server=True,
    ),
    Command(
        "send",
        "command.send",
        "run_send",
        "send messages from the command line, a file or stdin",
        '  tandem send Orders "order 17" --key order-17 --tag created\n'
        "  seq 1000 | tandem send Orders --property source=test\n"
        "  tandem send Pictures --file a.png --file b.png",
        clients.send_options,
    ),
    Command(
        "tail",
        "command.tail",
        "run_tail",
        "print a topic's messages as they come, without touching any group",
        "  tandem tail Orders --from first --count 10\n"
        '  tandem tail Orders --tag "created || paid" --json\n'
        "  tandem tail Orders --from 1h --to 30m --key order-17 --verbose",
        clients.tail_options,
    ),
    Command(
        "bench",
        "command.load",
        "run_bench",
        "send as fast as it goes, read it back, say how long it took",
        "  tandem bench --count 200000 --size 512\n  tandem bench --seconds 30 --rate 5000 --json",
        clients.bench_options,
    ),
    Command(
        "inspect",
        "command.inspection",
        "run_inspect",
        "say what is in a store directory and whether it is sound; read-only",
        "  tandem inspect ./tandem-data/store/broker-a",
        operating.inspect_options,
        server=True,
    ),
    Command(
        "audit",
        "audit.commands",
        "run_audit",
        "find and explain differences between replicas of a broker's log",
        "  tandem audit run ./store/master ./store/slave",
        operating.audit_options,
    ),
    Command(
        "backup",
        "backup.commands",
        "run_backup",
        "copy a broker's store while it runs, increment by increment; list and verify what was copied",
        "  tandem backup run --namesrv 10.0.0.1:9876 --to /backup --token-file http.token\n"
        "  tandem backup list /backup",
        backup_arguments,
        server=True,
    ),
    Command(
        "restore",
        "backup.commands",
        "run_restore",
        "make a store out of a backup, up to a point in time",
        "  tandem restore /backup --into /data/store\n"
        "  tandem restore s3://bucket/tandem --into /data/store --until 2025-09-19T08:30:00",
        restore_arguments,
        server=True,
    ),
    Command(
        "health",
        "command.health",
        "run_health",
        "ask a server whether it serves: for health checks of containers and supervisors",
        "  tandem health 127.0.0.1:10911",
        operating.health_options,
    ),
    Command(
        "doctor",
        "doctor.commands",
        "run_doctor",
        "say what looks wrong on this machine and in a running cluster, and what to do",
        "  tandem doctor --data /var/lib/tandemmq\n"
        "  tandem doctor --namesrv 10.0.0.1:9876 --cluster-only --json",
        operating.doctor_options,
    ),
    Command(
        "rolling-restart",
        "rolling.commands",
        "run_rolling_restart",
        "restart every broker in the order of their roles, without a failed send",
        "  tandem rolling-restart --with 'ssh {host} sudo systemctl restart tandemmq-broker@{name}'\n"
        "  tandem rolling-restart --with 'deploy/restart/compose.sh {host}' -b broker-a",
        operating.rolling_restart_options,
    ),
    Command(
        "hand-over",
        "rolling.handover",
        "run_hand_over",
        "let another member lead a broker's group before the broker is stopped",
        "  tandem hand-over 127.0.0.1:10911 && systemctl stop tandemmq-broker@broker-a",
        operating.hand_over_options,
    ),
    Command(
        "check-config",
        "command.checking",
        "run_check_config",
        "check a settings file without starting anything",
        "  tandem check-config broker.conf",
        servers.check_config_options,
        server=True,
    ),
    Command(
        "console",
        "console.serving",
        "run_console",
        "serve pages for a browser: the cluster, topics, groups, messages, dead letters, failovers",
        "  tandem console -n 127.0.0.1:9876 --port 9880\n"
        "  tandem console --token-file console.token --reports ./audits",
        servers.console_options,
        server=True,
    ),
    Command(
        "completion",
        "command.completion",
        "run_completion",
        "print what makes a shell complete commands and options",
        "  tandem completion bash > ~/.local/share/bash-completion/completions/tandem\n"
        "  tandem completion zsh > ~/.zfunc/_tandem\n"
        "  tandem completion fish > ~/.config/fish/completions/tandem.fish",
        operating.completion_options,
    ),
)
