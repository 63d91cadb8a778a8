# Who may call which method of the SPIRE server: what it allows by itself, and three calls that
# only read for gpuwarden's controller. The tables are in authorization.json.
package spire

result := {
	"allow": allow,
	"allow_if_admin": "admin" in callers,
	"allow_if_agent": "agent" in callers,
	"allow_if_downstream": "downstream" in callers,
	"allow_if_local": "local" in callers,
}

# Kinds of callers that the method is open to; none for a method that the table lacks.
callers := {kind | some kind in data.methods[input.full_method]}

default allow := false

allow if "anyone" in callers

allow if {
	input.caller in data.gpuwarden.readers
	input.full_method in data.gpuwarden.methods
}
