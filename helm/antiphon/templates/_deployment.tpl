{{/* Ports on which the containers listen, and the Services with them. */}}
{{- define "antiphon.stagePort" -}}50051{{- end -}}
{{- define "antiphon.metricsPort" -}}50052{{- end -}}
{{- define "antiphon.healthPort" -}}50053{{- end -}}
{{- define "antiphon.stagesHealthPort" -}}50055{{- end -}}
{{- define "antiphon.scalerPort" -}}50054{{- end -}}
{{- define "antiphon.httpPort" -}}8000{{- end -}}
{{- define "antiphon.grpcPort" -}}50050{{- end -}}

{{/* Where the gateway finds its certificate, and how its HTTP endpoint is spoken to. */}}
{{- define "antiphon.tlsPath" -}}/etc/antiphon-tls{{- end -}}
{{- define "antiphon.httpScheme" -}}http{{ if .Values.gateway.tlsSecret }}s{{ end }}{{- end -}}

{{/* Where a service finds the certificate by which it proves itself to others. Arguments: its role. */}}
{{- define "antiphon.mutualTlsPath" -}}/etc/antiphon-mutual-tls/{{ . }}{{- end -}}

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
{{- $ports := include "antiphon.stagePorts" (dict "root" $root "role" $role) | fromYaml -}}
{{- $_ := set $services $role $name -}}
{{- if eq $root.Values.discovery "static" -}}
{{- $_ := set $config "addresses" (list (printf "dns:///%s:%d" $name (int $ports.stage))) -}}
{{- end -}}
{{- $_ := set $config "advertise" (printf "${POD_IP}:%d" (int $ports.stage)) -}}
{{- $_ := set $config "health_listen" (printf "[::]:%d" (int $ports.health)) -}}
{{- $_ := set $config "drain_s" (include "antiphon.drain" (dict "root" $root "config" $stage.config) | float64) -}}
{{- $_ := set $config "listen" (printf "[::]:%d" (int $ports.stage)) -}}
{{- $_ := set $config "metrics_listen" (printf "[::]:%d" (int $ports.metrics)) -}}
{{- $_ := set $stages $role $config -}}
{{- end -}}
{{- $gateway := deepCopy .Values.gateway.config -}}
{{- $_ := set $gateway "http_listen" (printf "[::]:%s" (include "antiphon.httpPort" $root)) -}}
{{- $_ := set $gateway "grpc_listen" (printf "[::]:%s" (include "antiphon.grpcPort" $root)) -}}
{{- $_ := set $gateway "drain_s" (include "antiphon.drain" (dict "root" $root "config" .Values.gateway.config) | float64) -}}
{{- if .Values.gateway.metricsOwnPort -}}
{{- $_ := set $gateway "metrics_listen" (printf "[::]:%s" (include "antiphon.metricsPort" $root)) -}}
{{- end -}}
{{- if include "antiphon.scaled" . -}}
{{- $_ := set $gateway "scaler" (set ($gateway.scaler | default dict) "listen" (printf "[::]:%s" (include "antiphon.scalerPort" $root))) -}}
{{- /* Gateways add up what they want: KEDA asks one of them. */ -}}
{{- $_ := set $services "gateway" (include "antiphon.componentName" (dict "root" $root "component" "scaler")) -}}
{{- end -}}
{{- if eq .Values.discovery "kubernetes" -}}
{{- $_ := set $gateway "discovery" (dict "kind" "kubernetes" "namespace" .Release.Namespace "services" $services "port" (include "antiphon.stagePort" $root | int)) -}}
{{- end -}}
{{- with .Values.gateway.tlsSecret -}}
{{- $files := include "antiphon.tlsPath" $root -}}
{{- $_ := set $gateway "tls" (dict "certificate_file" (printf "%s/tls.crt" $files) "key_file" (printf "%s/tls.key" $files)) -}}
{{- end -}}
{{- $names := list -}}
{{- $service := include "antiphon.componentName" (dict "root" $root "component" "gateway") -}}
{{- range $suffix := list "" (printf ".%s" .Release.Namespace) (printf ".%s.svc" .Release.Namespace) (printf ".%s.svc.cluster.local" .Release.Namespace) -}}
{{- $names = append $names (printf "%s%s" $service $suffix) -}}
{{- end -}}
{{- if and .Values.ingress.enabled .Values.ingress.host -}}{{- $names = append $names .Values.ingress.host -}}{{- end -}}
{{- if .Values.httpRoute.enabled -}}{{- $names = concat $names .Values.httpRoute.hostnames -}}{{- end -}}
{{- $_ := set $gateway "host_names" (concat $names (.Values.gateway.config.host_names | default list) | uniq) -}}
{{- if .Values.gateway.keys.secret -}}
{{- $_ := set $gateway "keys_file" (printf "/etc/antiphon-keys/%s" .Values.gateway.keys.file) -}}
{{- end -}}
{{- if .Values.gateway.resumeKey.secret -}}
{{- $_ := set $gateway "resume" (set ($gateway.resume | default dict) "key_file" (printf "/etc/antiphon-resume/%s" .Values.gateway.resumeKey.file)) -}}
{{- end -}}
{{- $deployment := dict
  "model" (include "antiphon.modelPath" $root)
  "model_name" .Values.model.name
  "pipeline" (include "antiphon.pipeline" $root)
  "delivery" .Values.delivery
  "stages" $stages
  "gateway" $gateway
-}}
{{- if .Values.mutualTls.secretName -}}
{{- $files := include "antiphon.mutualTlsPath" "{role}" -}}
{{- $tls := dict "certificate_file" (printf "%s/tls.crt" $files) "key_file" (printf "%s/tls.key" $files) "authority_file" (printf "%s/ca.crt" $files) -}}
{{- $_ := set $deployment "mutual_tls" (merge $tls .Values.mutualTls.config) -}}
{{- end -}}
{{- toYaml $deployment -}}
{{- end -}}

{{/*
How long running answers may take when a process is told to stop: as long as a request may, unless
told. Arguments: root, config.
*/}}
{{- define "antiphon.drain" -}}
{{- if hasKey .config "drain_s" -}}{{ .config.drain_s }}
{{- else -}}{{ dig "limits" "request_timeout_s" 600 .root.Values.gateway.config }}
{{- end -}}
{{- end -}}

{{/*
Least time that a pod needs to end: preStop, the longest drain of its stages and a margin.
Arguments: root, settings, stages (their roles; of the gateway none).
*/}}
{{- define "antiphon.leastGrace" -}}
{{- $drain := include "antiphon.drain" (dict "root" .root "config" .settings.config) | float64 -}}
{{- range $role := .stages -}}
{{- $stage := include "antiphon.stage" (dict "root" $.root "role" $role) | fromYaml -}}
{{- $drain = maxf $drain (include "antiphon.drain" (dict "root" $.root "config" $stage.config) | float64) -}}
{{- end -}}
{{- add (int .settings.preStopSeconds) ($drain | ceil | int) 10 -}}
{{- end -}}

{{/* What a pod gets: at least that. Arguments: root, settings, stages. */}}
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

{{/*
The gateway's values. One that stays ready starts when all stages are ready for the first time, so it
has as long for that as their rollouts have.
*/}}
{{- define "antiphon.gatewaySettings" -}}
{{- $settings := deepCopy .Values.gateway -}}
{{- if $settings.staysReady -}}
{{- $start := $settings.probes.startup -}}
{{- $longest_s := mul (int $start.periodSeconds) (int $start.failureThreshold) -}}
{{- range $name := include "antiphon.workloads" . | fromJsonArray -}}
{{- $workload := merge (dict "root" $) (include "antiphon.workload" (dict "root" $ "component" $name) | fromYaml) -}}
{{- $longest_s = max $longest_s (include "antiphon.progressDeadline" $workload | int) -}}
{{- end -}}
{{- $_ := set $start "failureThreshold" (divf $longest_s $start.periodSeconds | ceil | int) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The probe of the gateway that asks about the stages. */}}
{{- define "antiphon.healthProbe" -}}
httpGet:
  path: "/health{{ with .Values.gateway.readyOutput }}?output={{ . }}{{ end }}"
  port: {{ include "antiphon.httpPort" . }}
  {{- if eq (include "antiphon.httpScheme" .) "https" }}
  scheme: HTTPS
  {{- end }}
{{- end -}}
