"""Security mutations of `deploy/`: what the manifests keep others from."""

from typing import Final

from tests.mutation_security.security_mutation import one

ENTRIES: Final = (
    one(
        "webhook-fail-open",
        "deploy/kustomize/components/admission/webhooks.yaml",
        "        path: /validate/pods/enforced\n"
        "        port: 443\n"
        "    admissionReviewVersions: [v1]\n"
        "    sideEffects: NoneOnDryRun\n"
        "    failurePolicy: Fail\n",
        "        path: /validate/pods/enforced\n"
        "        port: 443\n"
        "    admissionReviewVersions: [v1]\n"
        "    sideEffects: NoneOnDryRun\n"
        "    failurePolicy: Ignore\n",
        "tests/deploy/test_admission_files.py::test_a_webhook_that_does_not_answer_lets_nothing_in",
    ),
    one(
        "port-label",
        "deploy/policy/enforcement.yaml",
        ", 'gpuwarden.dev/monitoring']\"\n",
        ']"\n',
        "tests/deploy/test_policy_files.py"
        "::test_labels_that_let_namespaces_in_are_not_changed_without_the_right",
    ),
    one(
        "infrastructure-name",
        "deploy/policy/enforcement.yaml",
        " || object.metadata.name in variables.infrastructure\n",
        "\n",
        "tests/deploy/test_policy_files.py"
        "::test_a_namespace_of_such_a_name_is_not_created_without_the_right",
    ),
)
