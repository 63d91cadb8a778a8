"""Names of workloads: one namespace never has another's, and none is a job type."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.admission.hints.request import is_label_value
from controller.admission.hints.workload_name import job_as_owner, workload_name
from controller.placement.pod import Metadata, OwnerReference
from controller.scoring.documents import read_observation

NAMESPACES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
KINDS = st.sampled_from(["Job", "ReplicaSet", "StatefulSet", "Workflow", "K" * 63]) | st.text()
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?", fullmatch=True) | st.text()
LABELS = st.dictionaries(
    st.sampled_from(["pod-template-hash", "jobset.sigs.k8s.io/jobset-name", "app"]),
    st.from_regex(r"[A-Za-z0-9._-]{0,63}", fullmatch=True),
)
SUFFIXES = st.text("bcdfghjklmnpqrstvwxz2456789", min_size=5, max_size=5)


@settings(max_examples=200)
@given(namespace=NAMESPACES, kind=KINDS, name=NAMES, labels=LABELS)
def test_a_name_is_of_its_namespace_and_no_job_type_and_the_scorer_takes_it(
    namespace: str, kind: str, name: str, labels: dict[str, str]
) -> None:
    found = workload_name(namespace, OwnerReference(kind=kind, name=name), labels)
    if not found:
        return
    assert found.split("/")[0] == namespace
    assert not is_label_value(found)
    document = {"job_type": found, "gpu_type": "L4", "measured_runtime_s": 1}
    assert read_observation(document).job_type == found


@settings(max_examples=200)
@given(base=NAMES, suffix=SUFFIXES, labels=LABELS)
def test_a_job_with_a_generated_name_is_the_same_before_and_after(
    base: str, suffix: str, labels: dict[str, str]
) -> None:
    """The API server cuts the text and adds five characters."""
    before = job_as_owner(Metadata(generate_name=base))
    if before is None:
        return
    after = msgspec.structs.replace(before, name=base[:58] + suffix)
    assert workload_name("ns", before, labels) == workload_name("ns", after, labels)


@given(suffix=SUFFIXES, other=SUFFIXES, minutes=st.integers(10_000_000, 99_999_999))
def test_each_run_of_a_workload_has_the_same_name(suffix: str, other: str, minutes: int) -> None:
    def name(kind: str, text: str, **labels: str) -> str:
        given_labels = {key.replace("_", "-"): value for key, value in labels.items()}
        return workload_name("ns", OwnerReference(kind=kind, name=text), given_labels)

    assert name("Job", f"train-{suffix}") == name("Job", f"train-{other}") == "ns/Job/train"
    assert name("Job", f"nightly-{minutes}") == "ns/CronJob/nightly"
    found = name("ReplicaSet", f"web-{suffix}", pod_template_hash=suffix)
    assert found == "ns/Deployment/web"
