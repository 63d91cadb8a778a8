{{/*
Values of the charts that people come from, and what follows from others, put where this chart looks
for them. Every template begins
with it, because none is sure to be the first; twice is like once.
*/}}
{{- define "gpuwarden.aliases" -}}
{{- with .Values.replicaCount }}{{ $_ := set $.Values.controller "replicas" . }}{{ end }}
{{- with .Values.image.pullPolicy }}{{ $_ := set $.Values "imagePullPolicy" . }}{{ end }}
{{- with .Values.scheduler.name }}
{{- $_ := set $.Values.scheduler "names" (prepend (without $.Values.scheduler.names .) .) }}
{{- end }}
{{- if kindIs "bool" .Values.webhook.enabled }}
{{- $_ := set .Values.webhooks "enabled" .Values.webhook.enabled }}
{{- end }}
{{- with .Values.webhook.timeoutSeconds }}{{ $_ := set $.Values.webhooks "timeoutSeconds" . }}{{ end }}
{{- with .Values.webhook.schedulerUrl }}{{ $_ := set $.Values.hints "schedulerUrl" . }}{{ end }}
{{- if .Values.hints.scorer.enabled }}
{{- $own := printf "http://gpuwarden-score.%s.svc:8080" .Release.Namespace }}
{{- if not (has .Values.hints.schedulerUrl (list "" $own)) }}
{{- fail (printf "hints.schedulerUrl: %q, expected nothing with hints.scorer.enabled: true, which is asked" .Values.hints.schedulerUrl) }}
{{- end }}
{{- $_ := set .Values.hints "schedulerUrl" $own }}
{{- end }}
{{- if and .Values.webhook.caBundle (eq .Values.certificates.mode "given") }}
{{- $_ := set .Values.certificates "caBundle" (b64dec .Values.webhook.caBundle) }}
{{- end }}
{{- end -}}

{{/* Which of them were given, one a line: what to give in the place of it. */}}
{{- define "gpuwarden.givenAliases" -}}
{{- if .Values.replicaCount }}
replicaCount: the old name of controller.replicas
{{- end }}
{{- if .Values.image.pullPolicy }}
image.pullPolicy: the old name of imagePullPolicy
{{- end }}
{{- if .Values.scheduler.name }}
scheduler.name: the old name of the first of scheduler.names
{{- end }}
{{- if kindIs "bool" .Values.webhook.enabled }}
webhook.enabled: the old name of webhooks.enabled
{{- end }}
{{- if .Values.webhook.timeoutSeconds }}
webhook.timeoutSeconds: the old name of webhooks.timeoutSeconds
{{- end }}
{{- if .Values.webhook.caBundle }}
webhook.caBundle: the old name of certificates.caBundle, which takes PEM text
{{- end }}
{{- if .Values.webhook.schedulerUrl }}
webhook.schedulerUrl: the old name of hints.schedulerUrl
{{- end }}
{{- if .Values.webhook.failurePolicy }}
webhook.failurePolicy: gone, the webhooks always have Fail
{{- end }}
{{- end -}}
