"""The cluster at a glance, and one broker group. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandemmq.console import words
from tandemmq.console.markup import NOTHING, Html, html, join
from tandemmq.console.pages import parts
from tandemmq.console.pages.frame import Page, View
from tandemmq.console.pages.parts import Column
from tandemmq.console.pages.story import entry_list
from tandemmq.console.seen import findings as judged
from tandemmq.console.seen.servers import MASTER, SILENT, SLAVE, WAITING, BrokerGroup, Member
from tandemmq.doctor.findings import Severity

_TONES = {MASTER: "good", SLAVE: "quiet", WAITING: "look", SILENT: "bad"}
STORY_SHOWN = 6
DOCTOR_SHOWN = 12


def overview(view: View) -> Page:
    """Is data at risk, is anyone waiting, who leads."""
    seen = view.seen
    found = judged.findings(seen, view.now_ms)
    if not seen.taken_ms and not seen.problem:
        body = html('<p class="empty">Looking at the cluster for the first time …</p>')
        return Page("Cluster", parts.card("verdict", "What stands out", body))
    story = entry_list(list(reversed(seen.story))[:STORY_SHOWN], view.now_ms)
    cards = [
        _verdict(found),
        _tiles(view),
        parts.card("brokers", "Brokers", _brokers(seen.brokers)),
        _doctor(view),
        parts.card(
            "servers", "Name servers and controllers",
            parts.facts([
                ("name servers", ", ".join(seen.name_servers) or words.ABSENT),
                ("controllers", ", ".join(seen.controllers) or "none: a master that dies is not replaced"),
            ]), wide=False,
        ),
        parts.card("story", "What happened last", story, parts.link("/console/story", "all of it"), wide=False),
    ]  # fmt: skip
    return Page("Cluster", join(cards))


def _verdict(found: Sequence[judged.Finding]) -> Html:
    if not found:
        body = html('<p class="well">{} Everything answers, and every copy is where it should be.</p>',
                    parts.badge("good", "well"))  # fmt: skip
        return parts.card("verdict", "What stands out", body)
    rows = join(
        html(
            '<li class="{}">{}<div><strong>{}</strong><p>{}</p></div>{}</li>',
            each.severity, parts.badge(each.severity, each.severity), each.what, each.do,
            parts.link(each.place, "look") if each.place else NOTHING,
        )
        for each in found[:30]
    )  # fmt: skip
    return parts.card(
        "verdict", "What stands out", html('<ul class="findings">{}</ul>', rows),
        words.several(len(found), "finding"),
    )  # fmt: skip


_SEVERITIES = {Severity.CRITICAL: "bad", Severity.WARNING: "look", Severity.ADVICE: "quiet"}


def _doctor(view: View) -> Html:
    seen = view.seen
    if not seen.doctor_ms:
        return parts.card("doctor", "What the doctor says", html('<p class="empty">Asking …</p>'))
    rows = join(
        html(
            '<li class="{}">{}<div><strong>{}: {}</strong><p>{}</p></div></li>',
            _SEVERITIES[each.severity], parts.badge(_SEVERITIES[each.severity], each.check), each.where, each.text,
            each.do,
        )
        for each in seen.doctor[:DOCTOR_SHOWN]
    )  # fmt: skip
    body = (
        html('<ul class="findings">{}</ul>', rows)
        if seen.doctor
        else html('<p class="well">{}</p>', "Nothing looks wrong.")
    )
    more = len(seen.doctor) - DOCTOR_SHOWN
    if more > 0:
        body = html("{}<p><small>and {} more: tandem doctor lists them</small></p>", body, more)
    side = html("<code>tandem doctor</code> at {}", words.clock(seen.doctor_ms)[11:])
    return parts.card("doctor", "What the doctor says", body, side)


def _tiles(view: View) -> Html:
    seen = view.seen
    members = seen.members
    up = [each for each in members if each.role != SILENT]
    led = [each for each in seen.brokers if each.master is not None]
    lag = max((each.lag_bytes for each in members if each.lag_bytes is not None), default=None)
    disk = max((each.disk_ratio for each in members if each.disk_ratio is not None), default=None)
    behind = sum(each.behind or 0 for each in seen.groups if not each.system)
    last = seen.rates[-1] if seen.rates else None
    waiting = sum(sum(each.by_topic.values()) for each in seen.timers.values())
    tiles = [
        parts.tile("messages in", words.rate(last.put_per_second if last else None),
                   parts.curve([each.put_per_second for each in seen.rates], "messages in")),
        parts.tile("messages out", words.rate(last.get_per_second if last else None),
                   parts.curve([each.get_per_second for each in seen.rates], "messages out")),
        parts.tile("brokers", f"{len(up)} of {len(members)}", "answer", "" if len(up) == len(members) else "bad"),
        parts.tile("groups led", f"{len(led)} of {len(seen.brokers)}", "have a master",
                   "" if len(led) == len(seen.brokers) else "bad"),
        parts.tile("largest lag", words.size(lag), "of a slave",
                   "look" if (lag or 0) > judged.LAG_LOOK_BYTES else ""),
        parts.tile("fullest disk", words.percent(disk), parts.meter(disk, judged.DISK_LOOK, judged.DISK_BAD)
                   if disk is not None else NOTHING, "look" if (disk or 0) > judged.DISK_LOOK else ""),
        parts.tile("not consumed", words.count(behind) if seen.groups_ms else words.ABSENT,
                   parts.link("/console/groups", words.several(sum(not g.system for g in seen.groups), "group"))),
        parts.tile("timed", words.count(waiting) if seen.topics_ms else words.ABSENT,
                   parts.link("/console/timed", "messages wait")),
    ]  # fmt: skip
    return html('<section class="tiles" id="tiles" data-live>{}</section>', join(tiles))


_COLUMNS = (
    Column("group", "t"), Column("id", "n"), Column("role"), Column("in sync"), Column("epoch", "n"),
    Column("log end", "nw"), Column("lag", "n"), Column("in", "n"), Column("out", "nw"), Column("disk"),
    Column("address", "t"), Column("since", "nw"),
)  # fmt: skip


def _brokers(groups: Iterable[BrokerGroup]) -> Html:
    rows = [
        _row(group, member, place == 0)
        for group in groups
        for place, member in enumerate(group.members)
    ]
    return parts.table(_COLUMNS, rows, empty="No broker is registered.", label="brokers")


def _row(group: BrokerGroup, member: Member, first: bool) -> Sequence[object]:
    name = (
        parts.link(parts.path_of("/console/brokers", group.name), group.name) if first else NOTHING
    )
    sync: object = words.ABSENT
    if member.in_sync is not None:
        sync = parts.badge("good", "yes") if member.in_sync else parts.badge("look", "no")
    return (
        name, member.broker_id, parts.badge(_TONES[member.role], member.role), sync,
        words.count(member.epoch), words.size(member.end_offset), words.size(member.lag_bytes),
        words.rate(member.put_per_second), words.rate(member.get_per_second),
        parts.meter(member.disk_ratio, judged.DISK_LOOK, judged.DISK_BAD), member.address,
        words.ABSENT if not member.boot_ms else _since(member),
    )  # fmt: skip


def _since(member: Member) -> Html:
    return words.moment(member.boot_ms or 0)


def broker_group(view: View, group: BrokerGroup) -> Page:
    """One broker name: members, who could lead next, what each says of itself."""
    place = f"/console/brokers/{group.name}"
    found = [each for each in judged.findings(view.seen, view.now_ms) if each.place == place]
    head = parts.facts([
        ("cluster", group.cluster),
        ("master", group.master.name if group.master else "none"),
        ("epoch", words.count(group.epoch)),
        ("sync-state-set", ", ".join(str(each.broker_id) for each in group.in_sync) or words.ABSENT),
        ("its epoch", words.count(group.set_epoch)),
        ("who decides", "the controller" if group.controlled else "nobody: there is no controller"),
    ])  # fmt: skip
    cards = [_verdict(found)] if found else []
    cards += [
        parts.card("about", "Standing", head, _handover_link(view, group)),
        parts.card("brokers", "Members", _brokers([group])),
    ]
    for member in group.members:
        if member.status:
            rows = [(key, value) for key, value in sorted(member.status.items()) if value]
            cards.append(
                parts.card(
                    f"status-{member.broker_id}", f"What {member.name} says",
                    html("<details><summary>{} entries</summary>{}</details>", len(rows),
                         parts.table((Column("entry"), Column("value")), rows)),
                )
            )  # fmt: skip
    reigns = [each for each in view.seen.reigns if each.group == group.name]
    if reigns:
        from_to = [
            (each.epoch, words.count(each.start_offset), words.count(each.end_offset) if each.end_offset is not None
             else "it lasts", words.moment(each.first_ms or 0, view.now_ms)) for each in reigns
        ]  # fmt: skip
        columns = (
            Column("epoch", "n"),
            Column("from byte", "n"),
            Column("to byte", "n"),
            Column("first message"),
        )
        cards.append(
            parts.card("reigns", "Who wrote which part of the log", parts.table(columns, from_to))
        )
    return Page(group.name, join(cards))


def _handover_link(view: View, group: BrokerGroup) -> Html:
    if not group.controlled or not group.successors:
        return html('<span class="off">nobody could take over</span>')
    return html('<a class="button" href="{}">Hand over …</a>',
                parts.path_of("/console/brokers", group.name, "handover"))  # fmt: skip


def handover(view: View, group: BrokerGroup) -> Page:
    """What a planned switchover would do, and the button that does it."""
    master = group.master
    if master is None or not group.successors:
        return Page(
            "Hand over",
            parts.notice("look", f"Nobody can take {group.name} over now: {_why_not(group)}"),
            live=False,
        )
    radios = join(
        html(
            '<label class="choice"><input type="radio" name="to" value="{}"{}> {} at {}, {} behind</label>',
            each.broker_id, Html(" checked") if place == 0 else NOTHING, each.broker_id, each.address,
            words.size(each.lag_bytes or 0),
        )
        for place, each in enumerate(group.successors)
    )  # fmt: skip
    if view.session is None:
        act = view.sign_in("Handing over")
    else:
        act = html(
            '<form method="post" action="{path}" class="stack">{word}'
            '<input type="hidden" name="epoch" value="{epoch}">'
            "<fieldset><legend>Who leads next</legend>{radios}</fieldset>"
            '<label class="choice"><input type="checkbox" name="sure" value="yes" required>'
            " Yes, hand {name} over now</label>"
            '<p><button class="danger">Hand over</button> <a href="{back}">Leave it as it is</a></p></form>',
            path=parts.path_of("/console/brokers", group.name, "handover"), word=view.form_word(), epoch=group.epoch,
            radios=radios, name=group.name, back=parts.path_of("/console/brokers", group.name),
        )  # fmt: skip
    body = html(
        "<p>Member {} leads <strong>{}</strong> in epoch {}. It stops taking sends, lets its successor reach "
        "the end of its log, "
        "and steps down; clients wait for a moment and go on there. No acknowledged message is lost.</p>{}",
        f"{master.broker_id} at {master.address}", group.name, group.epoch, act,
    )  # fmt: skip
    return Page(
        f"Hand {group.name} over", parts.card("handover", "Planned switchover", body), live=False
    )


def _why_not(group: BrokerGroup) -> str:
    if not group.controlled:
        return "there is no controller."
    return (
        "it has no master."
        if group.master is None
        else "no other living member is in the sync-state-set."
    )
