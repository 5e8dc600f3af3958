{{/*
What the pods of stages and gateway share. Arguments: root, settings (the
stage's or the gateway's values).
*/}}
{{- define "antiphon.podSettings" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .settings.terminationGracePeriodSeconds }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .settings.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
A new configuration replaces the pods that it concerns: a stage's do not load
their weights again because another stage or the gateway has changed.
Arguments: root, component, settings.
*/}}
{{- define "antiphon.podAnnotations" -}}
{{- $read := include "antiphon.deployment" .root | fromYaml -}}
{{- if ne .component "gateway" -}}
{{- $read = merge (dict "stages" (pick $read.stages .component)) (omit $read "stages" "gateway") -}}
{{- end -}}
{{- $annotations := dict "checksum/config" (toYaml $read | sha256sum) -}}
{{- if .root.Values.metrics.annotations -}}
{{- $port := ternary "httpPort" "metricsPort" (eq .component "gateway") -}}
{{- $_ := set $annotations "prometheus.io/scrape" "true" -}}
{{- $_ := set $annotations "prometheus.io/port" (include (printf "antiphon.%s" $port) .root) -}}
{{- $_ := set $annotations "prometheus.io/path" "/metrics" -}}
{{- end -}}
{{- mergeOverwrite $annotations .settings.podAnnotations | toYaml -}}
{{- end -}}

{{/* The root is read-only: what writes to a home directory writes to /tmp. */}}
{{- define "antiphon.env" -}}
- name: HOME
  value: /tmp
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end -}}
