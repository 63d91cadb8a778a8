"""How a controller is put together from its settings, a file for each side of it.

Starts nothing, opens no port and decides nothing: controller/app.py leads the life of it.
"""
