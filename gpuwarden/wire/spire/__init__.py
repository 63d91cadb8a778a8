"""Generated code of the SPIRE server API (see proto/); only what gpuwarden calls."""
