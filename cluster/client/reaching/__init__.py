"""How the client reaches servers: name servers, routes, connections, and requests in both directions.

instance.py joins these for one client id; producers and consumers lease one.
"""
