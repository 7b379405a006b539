"""Who may do what, in both of RocketMQ's generations of access control: decisions of every process, without I/O.

    signature   who signs requests, and what a signed one proves
    rights      resources, actions, policies, and which entry of a policy decides
    needs       the one table: what each request code needs
    users       users and their policies, and every change of them (2.0)
    accounts    accounts of plain_acl.yml (1.0)
    gate        the question that each request is asked where it enters a process
    startup     settings: who may always come in, how we sign what we send

Here goes what a broker, a name server and a controller decide alike. Files, jobs and handlers of a broker are its own.
"""
