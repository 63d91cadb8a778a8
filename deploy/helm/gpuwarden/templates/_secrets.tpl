{{/*
Refuses secrets among values: they would be in the release, in a ConfigMap or in the pod's description.
Takes `path` of the group and `given`, a map. No value is shown.
*/}}
{{- define "gpuwarden.refuseSecrets" -}}
{{- range $key, $value := .given }}
{{- $path := printf "%s.%s" $.path $key }}
{{- if kindIs "map" $value }}
{{- include "gpuwarden.refuseSecrets" (dict "path" $path "given" $value) }}
{{- else if and $value (regexMatch "(?i)(password|passwd|token|secret|secret_?access_?key|api_?key|credentials?|otlpheaders)$" $key) }}
{{- $variables := dict "authToken" "HTTP_AUTH_TOKEN" "password" "POSTGRES_PASSWORD" "otlpHeaders" "GPUWARDEN_TELEMETRY_OTLP_HEADERS" "databasePassword" "GPUWARDEN_DATABASE_PASSWORD" }}
{{- if regexMatch "(^|\\.)hints\\.authToken$" $path }}
{{- $_ := set $variables "authToken" "GPUWARDEN_HINTS_AUTH_TOKEN" }}
{{- end }}
{{- $instead := printf "Give %s by valueFrom.secretKeyRef in %s.extraEnv" (get $variables $key | default "its variable") (regexReplaceAll "\\.(config|settings)\\..*$" $path "") }}
{{- if regexMatch "(^|\\.)export\\." $path }}
{{- $instead = printf "Put it as %s into the Secret that export.existingSecret names" (get $variables $key | default "its variable") }}
{{- end }}
{{- fail (printf "%s: given, expected nothing: no secret belongs into values. %s" $path $instead) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The same of environment variables (`path`, `given`: a list), which a Secret can give. */}}
{{- define "gpuwarden.refuseSecretVariables" -}}
{{- range $index, $each := .given }}
{{- if and $each.value (regexMatch "(PASSWORD|TOKEN|SECRET|SECRET_ACCESS_KEY|API_KEY|CREDENTIALS?|HEADERS)$" $each.name) }}
{{- fail (printf "%s[%d].value: given for %s, expected valueFrom.secretKeyRef: no secret belongs into values" $.path $index $each.name) }}
{{- end }}
{{- end }}
{{- end -}}
