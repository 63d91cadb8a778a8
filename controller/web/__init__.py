"""The HTTP edge: API, scheduler extender, webhooks and their listeners."""
