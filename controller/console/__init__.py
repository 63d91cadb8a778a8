"""The web console: pages for people, rendered here, from the read models of the HTTP API v1.

Pages need no script to be read. Nothing is loaded from anywhere else. Must not decide anything:
what is shown comes from `web.reading`, acts are done by `operations.operator_service`.
"""
