"""SPIFFE identities: parsing, this process's SVID and its watchdog, peers' chains, the tunnel."""
