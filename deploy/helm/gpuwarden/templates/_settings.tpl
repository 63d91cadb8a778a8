{{/* The settings that both processes read, as docs/reference/configuration.md has them. */}}

{{- define "gpuwarden.agentSettings" -}}
apiVersion: config.gpuwarden.dev/v1alpha1
kind: AgentConfig
{{ mustMergeOverwrite (include "gpuwarden.ownAgentSettings" . | fromYaml) .Values.agent.config | toYaml }}
{{- end -}}

{{- define "gpuwarden.ownAgentSettings" -}}
trustDomain: {{ .Values.trustDomain | quote }}
cluster: {{ .Values.clusterName | quote }}
workloadApi: unix://{{ .Values.spire.socketFolder }}/{{ .Values.spire.socketName }}
agent:
  controllers: [gpuwarden-controller:9443]
  kubeletSocket: {{ .Values.agent.kubeletRoot }}/pod-resources/kubelet.sock
{{- end -}}

{{- define "gpuwarden.controllerSettings" -}}
apiVersion: config.gpuwarden.dev/v1alpha1
kind: ControllerConfig
{{ mustMergeOverwrite (include "gpuwarden.ownControllerSettings" . | fromYaml) .Values.controller.config | toYaml }}
{{- end -}}

{{- define "gpuwarden.ownControllerSettings" -}}
trustDomain: {{ .Values.trustDomain | quote }}
cluster: {{ .Values.clusterName | quote }}
workloadApi: unix://{{ .Values.spire.socketFolder }}/{{ .Values.spire.socketName }}
spire:
  server: {{ include "gpuwarden.spireServer" . | quote }}
policy:
  file: /etc/gpuwarden/policy/policy.yaml
enforcement: {{ .Values.enforcement }}
{{- if .Values.evaluation.enabled }}
evaluation:
  enabled: true
{{- end }}
protection: {{ ternary "cluster" "namespaces" .Values.protection.enabled }}
scheduling:
  mode: {{ .Values.scheduling.mode }}
  schedulerNames: {{ toJson .Values.scheduler.names }}
{{- with .Values.hints.schedulerUrl }}
hints:
  schedulerUrl: {{ . | quote }}
  observe: {{ $.Values.hints.observe }}
  {{- if $.Values.hints.caBundle }}
  ca: /etc/gpuwarden/config/scorer-ca.pem
  {{- end }}
{{- end }}
{{- $folder := include "gpuwarden.certificateFolder" . }}
{{- if eq .Values.certificates.mode "self-managed" }}
certificates:
  selfManaged:
    enabled: true
    folder: {{ $folder }}
{{- end }}
{{- if .Values.webhooks.enabled }}
admission:
  tls:
    cert: {{ $folder }}/admission/tls.crt
    key: {{ $folder }}/admission/tls.key
    {{- if .Values.webhooks.callerCertificate }}
    clientCa: {{ $folder }}/admission/ca.crt
    {{- end }}
  idKeys: /etc/gpuwarden/reservation/keys
  runtimeClasses: {{ toJson .Values.webhooks.runtimeClasses }}
{{- end }}
{{- if eq (include "gpuwarden.hasExtender" .) "true" }}
extender:
  tls:
    cert: {{ $folder }}/extender/tls.crt
    key: {{ $folder }}/extender/tls.key
    clientCa: {{ $folder }}/extender/ca.crt
    {{- if .Values.certificates.servePrevious }}
    previous: /etc/gpuwarden/previous/extender
    {{- end }}
{{- end }}
{{- if .Values.httpApi.enabled }}
api:
  tls:
    cert: {{ $folder }}/api/tls.crt
    key: {{ $folder }}/api/tls.key
  readers: {{ toJson .Values.httpApi.readers }}
{{- end }}
{{- if .Values.access.enabled }}
access:
  tls:
    cert: {{ $folder }}/access/tls.crt
    key: {{ $folder }}/access/tls.key
    ca: {{ $folder }}/access/ca.crt
{{- end }}
{{- if .Values.monitoring.fleet.enabled }}
metrics:
  fleet: true
{{- end }}
{{- if .Values.export.exporters }}
export:
  {{- mustMergeOverwrite (dict "exporters" .Values.export.exporters) .Values.export.settings | toYaml | nindent 2 }}
{{- end }}
{{- if .Values.console.enabled }}
console:
  enabled: true
  {{- with .Values.console.proxies }}
  proxies: {{ toJson . }}
  {{- end }}
{{- end }}
{{- if eq (include "gpuwarden.hasExtender" .) "true" }}
listen:
  extender: ":8000"
{{- end }}
{{- end -}}

{{- define "gpuwarden.scoreSettings" -}}
apiVersion: config.gpuwarden.dev/v1alpha1
kind: ScoreConfig
{{ mustMergeOverwrite (include "gpuwarden.ownScoreSettings" . | fromYaml) .Values.hints.scorer.config | toYaml }}
{{- end -}}

{{- define "gpuwarden.ownScoreSettings" -}}
listen: ":8080"
ops: ":9090"
database: /var/lib/gpuwarden/score.db
{{- end -}}

{{- define "gpuwarden.spireServer" -}}
{{- if eq .Values.spire.mode "bundled" -}}
gpuwarden-spire-server:8081
{{- else -}}
{{ .Values.spire.serverAddress }}
{{- end -}}
{{- end -}}

{{/* Whether schedulers ask the extender: always, but with `scheduling.mode: affinity`. */}}
{{- define "gpuwarden.hasExtender" -}}
{{- eq .Values.scheduling.mode "extender" -}}
{{- end -}}

{{/* In which folder of a controller each listener's certificate is. */}}
{{- define "gpuwarden.certificateFolder" -}}
{{- ternary "/run/gpuwarden/certificates" "/etc/gpuwarden/certificates" (eq .Values.certificates.mode "self-managed") -}}
{{- end -}}

{{/* Listeners with certificates, as a list in JSON. */}}
{{- define "gpuwarden.listeners" -}}
{{- $all := list -}}
{{- if .Values.webhooks.enabled }}{{ $all = append $all "admission" }}{{ end -}}
{{- if eq (include "gpuwarden.hasExtender" .) "true" }}{{ $all = append $all "extender" }}{{ end -}}
{{- if .Values.httpApi.enabled }}{{ $all = append $all "api" }}{{ end -}}
{{- if .Values.access.enabled }}{{ $all = append $all "access" }}{{ end -}}
{{- toJson $all -}}
{{- end -}}

{{/* Secret with the scheduler's client certificate. */}}
{{- define "gpuwarden.schedulerSecret" -}}
{{- ternary "gpuwarden-scheduler-client-tls" .Values.certificates.secrets.scheduler (eq .Values.certificates.mode "self-managed") -}}
{{- end -}}

{{- define "gpuwarden.policy" -}}
apiVersion: config.gpuwarden.dev/v1alpha1
kind: Policy
{{ if .Values.policy }}
{{- toYaml .Values.policy }}
{{- else -}}
minLevel: {{ if or .Values.evaluation.enabled (eq .Values.spire.serverAddress "off") }}L0{{ else }}L1{{ end }}
attestors:
  k8s_psat:
    selectors: ["k8s:ns:{{ .Release.Namespace }}", "k8s:sa:gpuwarden-agent"]
    {{- with .Values.agentImages }}
    images: {{ toJson . }}
    {{- end }}
{{- if eq .Values.mode "env" }}
defaultMode: env
pools:
  - pattern: "*"
    mode: env
    honoursVariable: {{ .Values.envHonoursVariable }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The chart's own SPIRE agents may come later than our pods; somebody's SPIRE is there. */}}
{{- define "gpuwarden.socketFolderType" -}}
{{- ternary "DirectoryOrCreate" "Directory" (eq .Values.spire.mode "bundled") -}}
{{- end -}}
