{{/* Ports on which the containers listen, and the Services with them. */}}
{{- define "antiphon.stagePort" -}}50051{{- end -}}
{{- define "antiphon.metricsPort" -}}50052{{- end -}}
{{- define "antiphon.healthPort" -}}50053{{- end -}}
{{- define "antiphon.scalerPort" -}}50054{{- end -}}
{{- define "antiphon.httpPort" -}}8000{{- end -}}
{{- define "antiphon.grpcPort" -}}50050{{- end -}}

{{/* Where the gateway finds its certificate, and how its HTTP door is spoken to. */}}
{{- define "antiphon.tlsPath" -}}/etc/antiphon-tls{{- end -}}
{{- define "antiphon.httpScheme" -}}http{{ if .Values.gateway.tlsSecret }}s{{ end }}{{- end -}}

{{/* deployment.yaml, as every process reads it. */}}
{{- define "antiphon.deployment" -}}
{{- $root := . -}}
{{- $stages := dict -}}
{{- $services := dict -}}
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
{{- $_ := set $services $role $name -}}
{{- if eq $root.Values.discovery "static" -}}
{{- $_ := set $config "addresses" (list (printf "dns:///%s:%s" $name (include "antiphon.stagePort" $root))) -}}
{{- end -}}
{{- $_ := set $config "advertise" (printf "${POD_IP}:%s" (include "antiphon.stagePort" $root)) -}}
{{- $_ := set $config "health_listen" (printf "0.0.0.0:%s" (include "antiphon.healthPort" $root)) -}}
{{- $_ := set $config "drain_s" (include "antiphon.drain" (dict "root" $root "config" $stage.config) | float64) -}}
{{- $_ := set $config "listen" (printf "0.0.0.0:%s" (include "antiphon.stagePort" $root)) -}}
{{- $_ := set $config "metrics_listen" (printf "0.0.0.0:%s" (include "antiphon.metricsPort" $root)) -}}
{{- $_ := set $stages $role $config -}}
{{- end -}}
{{- $gateway := deepCopy .Values.gateway.config -}}
{{- $_ := set $gateway "http_listen" (printf "0.0.0.0:%s" (include "antiphon.httpPort" $root)) -}}
{{- $_ := set $gateway "grpc_listen" (printf "0.0.0.0:%s" (include "antiphon.grpcPort" $root)) -}}
{{- $_ := set $gateway "drain_s" (include "antiphon.drain" (dict "root" $root "config" .Values.gateway.config) | float64) -}}
{{- if include "antiphon.scaled" . -}}
{{- $_ := set $gateway "scaler_listen" (printf "0.0.0.0:%s" (include "antiphon.scalerPort" $root)) -}}
{{- /* Gateways add up what they want: KEDA asks one of them. */ -}}
{{- $_ := set $services "gateway" (include "antiphon.componentName" (dict "root" $root "component" "gateway")) -}}
{{- end -}}
{{- if eq .Values.discovery "kubernetes" -}}
{{- $_ := set $gateway "discovery" (dict "kind" "kubernetes" "namespace" .Release.Namespace "services" $services "port" (include "antiphon.stagePort" $root | int)) -}}
{{- end -}}
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

{{/*
How long running answers may take when a process is told to stop: as long as a request may, unless
told. Arguments: root, config.
*/}}
{{- define "antiphon.drain" -}}
{{- if hasKey .config "drain_s" -}}{{ .config.drain_s }}
{{- else -}}{{ dig "request_timeout_s" 600 .root.Values.gateway.config }}
{{- end -}}
{{- end -}}

{{/* Least time that a pod needs to end: preStop, drain and a margin. Arguments: root, settings. */}}
{{- define "antiphon.leastGrace" -}}
{{- add (int .settings.preStopSeconds) (include "antiphon.drain" (dict "root" .root "config" .settings.config) | float64 | ceil | int) 10 -}}
{{- end -}}

{{/* What a pod gets: at least that. Arguments: root, settings. */}}
{{- define "antiphon.grace" -}}
{{- if kindIs "invalid" .settings.terminationGracePeriodSeconds -}}
{{- include "antiphon.leastGrace" . -}}
{{- else -}}
{{- int .settings.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{/* Not empty where KEDA scales a stage. */}}
{{- define "antiphon.scaled" -}}
{{- range $role := include "antiphon.roles" . | fromJsonArray -}}
{{- $stage := include "antiphon.stage" (dict "root" $ "role" $role) | fromYaml -}}
{{- if $stage.autoscaling.enabled }}yes{{ end -}}
{{- end -}}
{{- end -}}
