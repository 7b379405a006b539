"""The console: the cluster as pages for a browser, served by a name server's HTTP port or by `tandem console`.

    seen/    what is known of the cluster at one moment, what is wrong with it, how it came there: values, no I/O
    asking/  collectors that ask the cluster at a bounded pace, for all viewers together, and what one viewer asks for
    pages/   HTML of those values: functions that escape by construction
    static/  one style sheet, one script; nothing comes from another host
    room.py  which path is which page, who may read, who may act

Source of what is shown: the admin calls that `tandem admin` makes, so that it works in front of Apache RocketMQ, too.
"""
