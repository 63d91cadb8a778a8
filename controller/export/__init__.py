"""Export of the attested inventory: what accepted evidence shows, one record per GPU and change."""
