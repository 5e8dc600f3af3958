{{/* Ports on which the containers listen, and the Services with them. */}}
{{- define "antiphon.stagePort" -}}50051{{- end -}}
{{- define "antiphon.metricsPort" -}}50052{{- end -}}
{{- define "antiphon.httpPort" -}}8000{{- end -}}
{{- define "antiphon.grpcPort" -}}50050{{- end -}}

{{/* Where the gateway finds its certificate, and how its HTTP door is spoken to. */}}
{{- define "antiphon.tlsPath" -}}/etc/antiphon-tls{{- end -}}
{{- define "antiphon.httpScheme" -}}http{{ if .Values.gateway.tlsSecret }}s{{ end }}{{- end -}}

{{/* deployment.yaml, as every process reads it. */}}
{{- define "antiphon.deployment" -}}
{{- $root := . -}}
{{- $stages := dict -}}
{{- range $role := include "antiphon.roles" . | fromJsonArray -}}
{{- $stage := include "antiphon.stage" (dict "root" $root "role" $role) | fromYaml -}}
{{- $config := dict -}}
{{- if eq $stage.accelerator.type "cpu" -}}
{{- $_ := set $config "device" "cpu" -}}
{{- else -}}
{{- $dtype := include "antiphon.acceleratedDtype" (dict "root" $root "role" $role) -}}
{{- $_ := merge $config (dict "device" "cuda" "dtype" $dtype) -}}
{{- end -}}
{{- $config = mergeOverwrite $config $stage.config -}}
{{- $name := include "antiphon.componentName" (dict "root" $root "component" $role) -}}
{{- $_ := set $config "addresses" (list (printf "dns:///%s:%s" $name (include "antiphon.stagePort" $root))) -}}
{{- $_ := set $config "listen" (printf "0.0.0.0:%s" (include "antiphon.stagePort" $root)) -}}
{{- $_ := set $config "metrics_listen" (printf "0.0.0.0:%s" (include "antiphon.metricsPort" $root)) -}}
{{- $_ := set $stages $role $config -}}
{{- end -}}
{{- $gateway := deepCopy .Values.gateway.config -}}
{{- $_ := set $gateway "http_listen" (printf "0.0.0.0:%s" (include "antiphon.httpPort" $root)) -}}
{{- $_ := set $gateway "grpc_listen" (printf "0.0.0.0:%s" (include "antiphon.grpcPort" $root)) -}}
{{- with .Values.gateway.tlsSecret -}}
{{- $files := include "antiphon.tlsPath" $root -}}
{{- $_ := set $gateway "tls" (dict "certificate_file" (printf "%s/tls.crt" $files) "key_file" (printf "%s/tls.key" $files)) -}}
{{- end -}}
{{- if .Values.gateway.keys.secret -}}
{{- $_ := set $gateway "keys_file" (printf "/etc/antiphon-keys/%s" .Values.gateway.keys.file) -}}
{{- end -}}
{{- dict
  "model" (include "antiphon.modelPath" $root)
  "model_name" .Values.model.name
  "pipeline" (include "antiphon.pipeline" $root)
  "delivery" .Values.delivery
  "stages" $stages
  "gateway" $gateway
| toYaml -}}
{{- end -}}
