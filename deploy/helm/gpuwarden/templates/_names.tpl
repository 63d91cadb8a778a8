{{/* Labels and names. A label's value has 63 characters at most and ends with a letter or digit. */}}

{{- define "gpuwarden.labelValue" -}}
{{- regexReplaceAll "[^A-Za-z0-9]+$" (regexReplaceAll "[^A-Za-z0-9._-]" . "_" | trunc 63) "" -}}
{{- end -}}

{{/* (dict "root" $ "component" "agent"): what selects pods. Never changes. */}}
{{- define "gpuwarden.selector" -}}
app.kubernetes.io/name: gpuwarden
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "gpuwarden.labels" -}}
{{- include "gpuwarden.selector" . }}
app.kubernetes.io/instance: {{ include "gpuwarden.labelValue" .root.Release.Name | quote }}
app.kubernetes.io/version: {{ include "gpuwarden.labelValue" .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: gpuwarden
helm.sh/chart: {{ include "gpuwarden.labelValue" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) | quote }}
{{- if .root.Values.evaluation.enabled }}
gpuwarden.dev/evaluation: "true"
{{- end }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
(dict "image" .Values.x.image "registry" "r/p" "tag" "v1"): `registry` before the name, and `tag` where
the image names none. With "mirror" in the place of "registry", the registry that the name begins with
gives way: a first part with a dot or a port, or `localhost`, as container engines read it.
*/}}
{{- define "gpuwarden.image" -}}
{{- $name := .image.repository -}}
{{- $registry := .registry -}}
{{- if .mirror }}
{{- $registry = .mirror -}}
{{- $name = regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" $name "" -}}
{{- end -}}
{{- if $registry }}{{ $name = printf "%s/%s" (trimSuffix "/" $registry) $name }}{{ end -}}
{{- if .image.digest -}}
{{ printf "%s@%s" $name .image.digest }}
{{- else -}}
{{ printf "%s:%s" $name (.image.tag | default .tag) }}
{{- end -}}
{{- end -}}

{{/* v1.35.4 of v1.35.4-gke.1 and v1.35.4+k3s1. */}}
{{- define "gpuwarden.kubernetesVersion" -}}
{{- regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{- end -}}

{{/* Namespaces whose pods never wait for gpuwarden, as a list in JSON. */}}
{{- define "gpuwarden.infrastructure" -}}
{{- $spire := ternary .Values.spire.namespaces list (eq .Values.spire.mode "external") -}}
{{- append (concat .Values.infrastructureNamespaces $spire) .Release.Namespace | uniq | toJson -}}
{{- end -}}

{{- define "gpuwarden.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A pod that is nobody and a container without any right (Pod Security: restricted). */}}
{{- define "gpuwarden.nobody" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "gpuwarden.powerless" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Kept on managed GPU nodes where there are no others. */}}
{{- define "gpuwarden.ownToleration" -}}
- key: gpuwarden.dev/managed
  operator: Exists
  effect: NoExecute
{{- end -}}

{{- define "gpuwarden.awayFromGpus" -}}
nodeAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference:
        matchExpressions:
          - key: nvidia.com/gpu.present
            operator: NotIn
            values: ["true"]
{{- end -}}
