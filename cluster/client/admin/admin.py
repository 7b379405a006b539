"""What operators ask and order, as typed methods: the calls that mqadmin makes."""

from __future__ import annotations

from tandemmq.cluster.client.admin.messages import MessageAdmin
from tandemmq.cluster.client.admin.replicas import ReplicaAdmin
from tandemmq.cluster.client.admin.users import UserAdmin


# Inherited, not held: users ask one object, and ninety methods that pass each call on to six parts would hide what
# they do. Each part stands on those whose answers it uses: messages on groups, groups on topics, topics on servers.
class Admin(MessageAdmin, ReplicaAdmin, UserAdmin):
    """Administration over the wire, of TandemMQ's and of RocketMQ's clusters.

    Use it with `async with`; every method may be awaited by many tasks at once.

    namesrv     "host:9876;host:9876", a sequence of addresses, or None for NAMESRV_ADDR
    tls         None: plain TCP
    config      instead of namesrv and tls, with access key and more; topic and group names are
                always full ones, whatever its namespace
    timeout_ms  for one request; requests that a broker relays or that take it long have more

    Methods fall into servers (cluster, masters, broker_status, broker_config, put_kv, ...),
    replicated groups (replica_sets, epoch_history, elect_master, switchover, ...), topics
    (create_topic, put_topic, topic_stats, ...), groups (put_group, consumers, progress, reset, ...),
    users of access control (create_user, put_rules, ...) and messages (messages_by_key, message_at,
    track, ...). Each does what its words say on every
    broker or name server concerned, and stops at the first refusal.

    Raises, everywhere: NoNameServer, BrokerUnreachable, CallTimedOut, BrokerRefused (with the
    broker's code and words), BrokerAnswerBroken, NotRunning outside `async with`; NoRoute where a
    topic or group must exist, UnknownCluster where a cluster must.

    Example:
        async with Admin("127.0.0.1:9876") as admin:
            await admin.create_topic("Orders", queue_count=8)
            print((await admin.progress("billing")).behind)
    """
