"""Security mutations of the HTTP API v1 and the console: who looks, who acts, what is escaped."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import API_V1, CONSOLE

ENTRIES: Final = (
    one(
        "v1-pods-of-a-namespace",
        "controller/web/api/reading.py",
        "        refusal = await self._viewers.about_pods(asked.viewer, namespace, name)\n",
        "        refusal = None\n",
        f"{API_V1}::test_a_person_sees_pods_of_namespaces_that_they_may_read",
        f"{API_V1}::test_a_person_reads_a_pod_without_others_in_it",
    ),
    one(
        "v1-others-in-a-trace",
        "controller/web/api/reading.py",
        "pod_detail(trace if asked.viewer.has_serials else shown_trace(trace))",
        "pod_detail(trace)",
        f"{API_V1}::test_a_person_reads_a_pod_without_others_in_it",
    ),
    one(
        "v1-readers",
        "controller/web/api/v1.py",
        "        if access is Access.READER and not viewer.reads:\n",
        "        if False:\n",
        f"{API_V1}::test_the_fleet_is_for_readers",
    ),
    one(
        "viewer-proxy",
        "controller/web/api/viewers.py",
        "        if isinstance(identity, Refusal) or str(identity) not in self._people.proxies:\n",
        "        if isinstance(identity, Refusal):\n",
        f"{API_V1}::test_a_proxy_names_its_user_and_nobody_else_does",
    ),
    one(
        "viewer-rebound-name",
        "controller/web/api/viewers.py",
        "    return is_local and host in _LOCAL_NAMES",
        "    return is_local and bool(host)",
        f"{API_V1}::test_this_machine_reads_without_a_login_only_where_that_is_allowed",
    ),
    one(
        "console-form-of-elsewhere",
        "controller/console/console.py",
        '        return site == "same-origin"\n',
        '        return site != ""\n',
        f"{CONSOLE}::test_a_form_of_elsewhere_does_nothing",
    ),
    one(
        "console-operators",
        "controller/console/console.py",
        "        if not viewer.operates:\n",
        "        if False:\n",
        f"{CONSOLE}::test_acts_are_for_operators",
    ),
    one(
        "console-cookie",
        "controller/console/console.py",
        'COOKIE, token, path="/", secure=True, httponly=True,',
        'COOKIE, token, path="/", secure=True, httponly=False,',
        f"{CONSOLE}::test_a_login_keeps_the_token_where_no_script_sees_it",
    ),
    one(
        "console-escapes",
        "controller/console/pages.py",
        "autoescape=True",
        "autoescape=False",
        f"{CONSOLE}::test_pages_escape_whatever_others_wrote",
    ),
)
