{{/* Refuses what the schema cannot see. Rendered first by the ConfigMap. */}}
{{- define "antiphon.checks" -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" (include "antiphon.fullname" .)) -}}
{{- fail (printf "%q cannot begin the name of a Service: set fullnameOverride to one that starts with a letter" (include "antiphon.fullname" .)) -}}
{{- end -}}
{{- include "antiphon.modelChecks" . -}}
{{- include "antiphon.roleChecks" . -}}
{{- include "antiphon.colocatedChecks" . -}}
{{- with .Values.mutualTls -}}
{{- if and (not .secretName) (or .certManager.issuerRef .config) -}}
{{- fail "mutualTls.secretName: is empty; name the Secrets of the certificates, for example speech-{role}-tls" -}}
{{- end -}}
{{- end -}}
{{- include "antiphon.podChecks" (dict "root" . "where" "gateway" "settings" .Values.gateway) -}}
{{- include "antiphon.containerChecks" (dict "root" . "where" "gateway" "settings" .Values.gateway "variant" "") -}}
{{- if and (eq .Values.discovery "kubernetes") (not (include "antiphon.serviceAccountName" (dict "root" . "component" "gateway" "settings" .Values.gateway))) -}}
{{- fail "gateway.serviceAccount.name: is empty; name an account, which the chart lets read EndpointSlices, or set create to true" -}}
{{- end -}}
{{- range $name := include "antiphon.workloads" . | fromJsonArray -}}
{{- $workload := include "antiphon.workload" (dict "root" $ "component" $name) | fromYaml -}}
{{- $where := printf "%s.%s" (hasKey $.Values.colocated $name | ternary "colocated" "stages") $name -}}
{{- include "antiphon.podChecks" (dict "root" $ "where" $where "settings" $workload.settings "stages" $workload.stages) -}}
{{- include "antiphon.replicaChecks" (dict "root" $ "where" $where "settings" $workload.settings) -}}
{{- range $container := $workload.containers -}}
{{- $own := eq $workload.accelerators "shared" | ternary $where (printf "stages.%s" (first $container.stages)) -}}
{{- $variant := include "antiphon.variant" (dict "root" $ "stages" $container.stages "settings" $container.settings) -}}
{{- include "antiphon.containerChecks" (dict "root" $ "where" $own "settings" $container.settings "variant" $variant) -}}
{{- include "antiphon.memoryChecks" (dict "where" $own "pod" $where "settings" $container.settings) -}}
{{- range $role := $container.stages -}}
{{- $stage := include "antiphon.stage" (dict "root" $ "role" $role) | fromYaml -}}
{{- $accelerator := eq $workload.accelerators "own" | ternary (printf "stages.%s" $role) $where -}}
{{- include "antiphon.stageChecks" (dict "root" $ "role" $role "where" $accelerator "stage" $stage) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "antiphon.modelChecks" -}}
{{- range $route := list "httpRoute" "grpcRoute" -}}
{{- with get $.Values $route -}}
{{- if and .enabled (not .parentRefs) -}}
{{- fail (printf "%s.parentRefs: is empty; name the Gateway that the route belongs to" $route) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.gateway.service -}}
{{- if and .externalTrafficPolicy (eq .type "ClusterIP") -}}
{{- fail "gateway.service.externalTrafficPolicy: has no effect on a ClusterIP; set gateway.service.type to LoadBalancer or NodePort" -}}
{{- end -}}
{{- if and (or .loadBalancerClass .loadBalancerSourceRanges) (ne .type "LoadBalancer") -}}
{{- fail (printf "gateway.service: loadBalancerClass and loadBalancerSourceRanges have no effect on a %s; set gateway.service.type to LoadBalancer" .type) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.model.source "hostPath" -}}
{{- if not .Values.model.hostPath -}}
{{- fail "model.source is hostPath: set model.hostPath" -}}
{{- end -}}
{{- else if .Values.model.hostPath -}}
{{- fail "model.hostPath is set: set model.source to hostPath as well, or remove it" -}}
{{- end -}}
{{- if and .Values.model.existingClaim (ne .Values.model.source "existingClaim") -}}
{{- fail "model.existingClaim is set: set model.source to existingClaim as well, or remove it" -}}
{{- end -}}
{{- with .Values.model -}}
{{- if and .download.enabled (has .source (list "embedded" "hostPath")) -}}
{{- fail (printf "model.download.enabled: a download needs model.source claim, existingClaim or emptyDir, not %s" .source) -}}
{{- end -}}
{{- if and .download.enabled (not .download.command) -}}
{{- fail "model.download.command: is empty; give the command that puts the checkpoint into $(MODEL_DIRECTORY)" -}}
{{- end -}}
{{- if and (eq .source "emptyDir") (not .download.enabled) -}}
{{- fail "model.source is emptyDir: set model.download.enabled, or the volume stays empty" -}}
{{- end -}}
{{- if and .subPathPerStage (not (has .source (list "claim" "existingClaim"))) -}}
{{- fail (printf "model.subPathPerStage: needs model.source claim or existingClaim, not %s" .source) -}}
{{- end -}}
{{- end -}}
{{- if and (ne .Values.model.source "embedded") (not .Values.model.pipeline) -}}
{{- fail (printf "model.pipeline: is empty; name the model family of the checkpoint (this chart knows %s)" (include "antiphon.pipelineNames" .)) -}}
{{- end -}}
{{- end -}}

{{- define "antiphon.roleChecks" -}}
{{- $pipeline := include "antiphon.pipeline" . -}}
{{- $known := include "antiphon.knownRoles" . | fromJsonArray -}}
{{- range $role := keys .Values.stages | sortAlpha -}}
{{- if include "antiphon.isTaken" $role -}}
{{- fail (printf "stages.%s: no stage can be called %s, other objects of the release are" $role $role) -}}
{{- end -}}
{{- if and $known (not (has $role $known)) -}}
{{- fail (printf "stages.%s: the pipeline %s has no such stage; it has %s" $role $pipeline (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- $roles := include "antiphon.roles" . | fromJsonArray -}}
{{- if not $roles -}}
{{- if $known -}}
{{- fail (printf "stages: at least one of %s must not be null" (join ", " $known)) -}}
{{- end -}}
{{- fail (printf "model.pipeline: this chart does not know %s, only %s; list the roles of its stages in stages, as in {role: {}}" $pipeline (include "antiphon.pipelineNames" .)) -}}
{{- end -}}
{{- if not .Values.gateway.readyOutput -}}
{{- $remedy := "set gateway.readyOutput to an output that does without it, for example text, or no gateway is ever ready" -}}
{{- range $role := $known -}}
{{- if not (has $role $roles) -}}
{{- fail (printf "stages.%s: is null; %s" $role $remedy) -}}
{{- end -}}
{{- end -}}
{{- range $role := $roles -}}
{{- $stage := include "antiphon.stage" (dict "root" $ "role" $role) | fromYaml -}}
{{- if and (not (kindIs "invalid" $stage.replicas)) (eq (int $stage.replicas) 0) -}}
{{- fail (printf "stages.%s.replicas: is 0; %s" $role $remedy) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of a pod of stages or of the gateway. Arguments: root, where, settings, stages. */}}
{{- define "antiphon.podChecks" -}}
{{- $least := include "antiphon.leastGrace" . -}}
{{- if lt (include "antiphon.grace" . | int) (int $least) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds: %v is less than the %s s of preStopSeconds, drain_s and 10 s of margin: answers would be cut; leave it null, or set config.drain_s" .where .settings.terminationGracePeriodSeconds $least) -}}
{{- end -}}
{{- $own := include "antiphon.podLabels" (dict "root" .root "component" .where) | fromYaml -}}
{{- range $label := keys (default dict .settings.podLabels) | sortAlpha -}}
{{- if hasKey $own $label -}}
{{- fail (printf "%s.podLabels: %s is set by the chart, which selects pods by it; use another label" $.where $label) -}}
{{- end -}}
{{- end -}}
{{- with .settings.autoscaling -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "%s.autoscaling.minReplicas: %d is more than maxReplicas, %d" $.where (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of a pod of stages. Arguments: root, where, settings. */}}
{{- define "antiphon.replicaChecks" -}}
{{- if and (eq .root.Values.model.source "existingClaim") (not (or .settings.modelClaim .root.Values.model.existingClaim)) -}}
{{- fail (printf "model.source is existingClaim: set model.existingClaim, or %s.modelClaim" .where) -}}
{{- end -}}
{{- $many := or .settings.autoscaling.enabled (kindIs "invalid" .settings.replicas) -}}
{{- if not $many -}}{{- $many = gt (int .settings.replicas) 1 -}}{{- end -}}
{{- if and $many (ne .root.Values.discovery "kubernetes") -}}
{{- fail (printf "%s.replicas: more than one needs discovery: kubernetes; by one name the gateway and the other stages could reach different pods" .where) -}}
{{- end -}}
{{- end -}}

{{/* Of a container of stages or of the gateway. Arguments: root, where, settings, variant. */}}
{{- define "antiphon.containerChecks" -}}
{{- $image := .settings.image -}}
{{- $policy := include "antiphon.pullPolicy" (dict "root" .root "image" $image) -}}
{{- if not (or .root.Values.images.registry (contains "/" $image.repository) (eq $policy "Never")) -}}
{{- fail (printf "images.registry: is empty, and no image %s is published; build the images, push them to a registry and set images.registry, or set images.pullPolicy to Never for images that were loaded into the nodes" $image.repository) -}}
{{- end -}}
{{- if and (eq .variant "amd") (not (or $image.tag $image.digest)) -}}
{{- fail (printf "%s.image.tag: must be set, there is no Dockerfile for amd; build an image with a torch for ROCm" .where) -}}
{{- end -}}
{{- $limits := default dict .settings.resources.limits -}}
{{- range $name, $amount := default dict .settings.resources.requests -}}
{{- $limit := get $limits $name -}}
{{- if and $limit (eq (include "antiphon.exceeds" (list $amount $limit)) "true") -}}
{{- fail (printf "%s.resources.requests.%s: %v must not be more than resources.limits.%s, %v" $.where $name $amount $name $limit) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of a container of stages, and of /dev/shm of its pod. Arguments: where, pod, settings. */}}
{{- define "antiphon.memoryChecks" -}}
{{- $limit := dig "limits" "memory" "" .settings.resources -}}
{{- if not $limit -}}
{{- fail (printf "%s.resources.limits.memory: must be set, /dev/shm counts against it" .where) -}}
{{- end -}}
{{- if ne (include "antiphon.exceeds" (list $limit .settings.sharedMemory.size)) "true" -}}
{{- fail (printf "%s.sharedMemory.size: %v must be less than %sresources.limits.memory, %v" .pod .settings.sharedMemory.size (eq .pod .where | ternary "" (printf "%s." .where)) $limit) -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, role, where (what has the accelerator), stage. */}}
{{- define "antiphon.stageChecks" -}}
{{- $config := .stage.config -}}
{{- if and .root.Values.networkPolicy.enabled $config.trace_endpoint (not (regexMatch ":[0-9]+$" $config.trace_endpoint)) -}}
{{- fail (printf "stages.%s.config.trace_endpoint: %s names no port, and a NetworkPolicy opens ports alone" .role $config.trace_endpoint) -}}
{{- end -}}
{{- range $key := list "link.slab_bytes" "copies.staging_bytes" -}}
{{- $path := splitList "." $key -}}
{{- $bytes := dig (first $path) (last $path) nil $config -}}
{{- if and $bytes (ne (include "antiphon.isPowerOfTwo" $bytes) "true") -}}
{{- fail (printf "stages.%s.config.%s: %v must be a power of two" $.role $key (int64 $bytes)) -}}
{{- end -}}
{{- end -}}
{{- include "antiphon.deviceChecks" . -}}
{{- end -}}

{{/* Arguments: root, role, where, stage. */}}
{{- define "antiphon.deviceChecks" -}}
{{- $device := default "" .stage.config.device -}}
{{- if and (eq .stage.accelerator.type "cpu") (hasPrefix "cuda" $device) -}}
{{- fail (printf "stages.%s.config.device: %s needs accelerator.type nvidia or amd" .role $device) -}}
{{- end -}}
{{- if ne .stage.accelerator.type "cpu" -}}
{{- $count := int .stage.accelerator.count -}}
{{- $index := regexFind "[0-9]+$" $device -}}
{{- if and (hasPrefix "cuda:" $device) (ge (int $index) $count) -}}
{{- fail (printf "stages.%s.config.device: there is no %s among the %d of %s.accelerator.count; the first is cuda:0" .role $device $count .where) -}}
{{- end -}}
{{- $parallel := dig "tensor_parallel_size" 1 (default dict .stage.config.engine_args) -}}
{{- if gt (int $parallel) $count -}}
{{- fail (printf "stages.%s.config.engine_args.tensor_parallel_size: %d is more than the %d of %s.accelerator.count" .role (int $parallel) $count .where) -}}
{{- end -}}
{{- end -}}
{{- end -}}
