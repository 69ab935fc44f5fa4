{{/* Which nodes a pool picks: node selector terms as a JSON list of lists of requirements. Takes root and pool. */}}
{{- define "xpu-agent.picked" -}}
{{- $always := list -}}
{{- range $key, $value := default dict .pool.nodeSelector -}}
{{- $always = append $always (dict "key" $key "operator" "In" "values" (list $value)) -}}
{{- end -}}
{{- $affinity := fromJson (include "xpu-agent.affinity" .) -}}
{{- $terms := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity -}}
{{- $picked := list -}}
{{- range $terms -}}
{{- $fields := list -}}
{{- range default list .matchFields -}}
{{- $fields = append $fields (merge (dict "key" (printf "field %s" .key)) .) -}}
{{- end -}}
{{- $picked = append $picked (concat $always (default list .matchExpressions) $fields) -}}
{{- end -}}
{{- toJson $picked -}}
{{- end -}}

{{/* Whether no node meets both requirements. Takes a and b. */}}
{{- define "xpu-agent.contradict" -}}
{{- $a := .a -}}
{{- $b := .b -}}
{{- if eq $a.key $b.key -}}
{{- if and (eq $a.operator "In") (eq $b.operator "In") -}}
{{- $common := false -}}
{{- range $a.values -}}{{- if has . $b.values -}}{{- $common = true -}}{{- end -}}{{- end -}}
{{- if not $common -}}yes{{- end -}}
{{- else if and (eq $a.operator "In") (eq $b.operator "NotIn") -}}
{{- $left := false -}}
{{- range $a.values -}}{{- if not (has . $b.values) -}}{{- $left = true -}}{{- end -}}{{- end -}}
{{- if not $left -}}yes{{- end -}}
{{- else if and (has $a.operator (list "In" "Exists")) (eq $b.operator "DoesNotExist") -}}
yes
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether no node is picked by both lists of terms. Takes one and other. */}}
{{- define "xpu-agent.disjoint" -}}
{{- $overlap := false -}}
{{- range $term := .one -}}
{{- range $else := $.other -}}
{{- $apart := false -}}
{{- range $a := $term -}}
{{- range $b := $else -}}
{{- if or (include "xpu-agent.contradict" (dict "a" $a "b" $b)) (include "xpu-agent.contradict" (dict "a" $b "b" $a)) -}}
{{- $apart = true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $apart -}}{{- $overlap = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $overlap -}}yes{{- end -}}
{{- end -}}

{{/* Whether a node without the label has a config, where the chart makes the ConfigMap. */}}
{{- define "xpu-agent.checkDefaults" -}}
{{- $names := list "default" -}}
{{- $owner := "the chart's example" -}}
{{- with .Values.config.map -}}
{{- $names = keys . | sortAlpha -}}
{{- $owner = "config.map" -}}
{{- end -}}
{{- $by := .Values.config.fallbackStrategies -}}
{{- $found := or (has "empty" $by) (and (has "named" $by) (has "default" $names)) (and (has "single" $by) (eq (len $names) 1)) -}}
{{- range $pool, $its := fromJson (include "xpu-agent.pools" .) -}}
{{- $default := default $.Values.config.default $its.defaultConfig -}}
{{- if and $default (not (has $default $names)) -}}
{{- fail (printf "%s: '%s' is not in %s, which has %s" (ternary (printf "pools.%s.defaultConfig" $pool) "config.default" (not (empty $its.defaultConfig))) $default $owner (join ", " $names)) -}}
{{- end -}}
{{- if not (or $default $found) -}}
{{- fail (printf "%s has %s and config.default names none of them, so that a node without the label has no config; name one" $owner (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether the directories of the host can be seen at their own paths in the container. */}}
{{- define "xpu-agent.checkPlaces" -}}
{{- $places := dict "stateDir" .Values.stateDir "cdi.dir" .Values.cdi.dir "labels.directory" .Values.labels.directory -}}
{{- if .Values.koordinator.enabled -}}
{{- $_ := set $places "koordinator.directory" .Values.koordinator.directory -}}
{{- end -}}
{{- /* Vendors may share one. */ -}}
{{- $logs := dict -}}
{{- range $name, $vendor := .Values.vendors -}}
{{- with $vendor.logDir -}}{{- $_ := set $logs . (printf "vendors.%s.logDir" $name) -}}{{- end -}}
{{- end -}}
{{- with .Values.log.dir -}}{{- $logs = dict . "log.dir" -}}{{- end -}}
{{- range $path, $value := $logs -}}{{- $_ := set $places $value $path -}}{{- end -}}
{{- $kubelets := list "/var/lib/kubelet/device-plugins" (printf "%s/pod-resources" .Values.kubelet.dir) -}}
{{- $used := dict -}}
{{- range $value, $path := $places -}}
{{- range $kubelets -}}
{{- if hasPrefix (printf "%s/" .) (printf "%s/" $path) -}}
{{- fail (printf "%s: %s is in %s, which is the kubelet's; name another directory" $value $path .) -}}
{{- end -}}
{{- end -}}
{{- /* Of the last the container has another path. */ -}}
{{- if and (ne $value "koordinator.directory") (regexMatch "^/((var/)?run/secrets|proc|sys|dev|bin|sbin|lib|lib64|usr|tmp|driver-root|etc/xpu-agent|opt/xpu-agent)(/|$)" $path) -}}
{{- fail (printf "%s: %s would hide what the container has there itself; name another directory" $value $path) -}}
{{- end -}}
{{- if hasKey $used $path -}}
{{- fail (printf "%s and %s are both %s; give each a directory of its own" (get $used $path) $value $path) -}}
{{- end -}}
{{- $_ := set $used $path $value -}}
{{- end -}}
{{- if and (eq .Values.labels.output "file") (not .Values.labels.directory) -}}
{{- fail "labels.directory is empty, and labels.output is file; name the directory that node-feature-discovery reads" -}}
{{- end -}}
{{- end -}}

{{/* Whether the API server takes the update strategy: one of the two has to be 0, and not both. */}}
{{- define "xpu-agent.checkRollout" -}}
{{- $strategy := .Values.updateStrategy -}}
{{- $rolling := default dict $strategy.rollingUpdate -}}
{{- $surges := not (has (toString (default 0 $rolling.maxSurge)) (list "0" "0%")) -}}
{{- $lacks := not (has (toString (dig "maxUnavailable" 1 $rolling)) (list "0" "0%")) -}}
{{- if and $surges (gt (int .Values.http.hostPort) 0) -}}
{{- fail "updateStrategy.rollingUpdate.maxSurge with http.hostPort: two pods cannot have one host port; use maxUnavailable, or no hostPort" -}}
{{- end -}}
{{- if and $rolling (eq (toString $strategy.type) "OnDelete") -}}
{{- fail "updateStrategy: rollingUpdate with type OnDelete; leave one out" -}}
{{- end -}}
{{- if and $rolling (eq $surges $lacks) -}}
{{- fail "updateStrategy.rollingUpdate: one of maxSurge and maxUnavailable must be 0 and the other not; maxUnavailable is 1 where it is not said" -}}
{{- end -}}
{{- end -}}

{{/* Whether the next agent is given the time to fail before its first probe, which the last one may answer. */}}
{{- define "xpu-agent.checkFirstProbe" -}}
{{- $delay := int (fromYaml (include "xpu-agent.readiness" .)).initialDelaySeconds -}}
{{- $surge := toString (dig "rollingUpdate" "maxSurge" 0 (fromYaml (include "xpu-agent.updateStrategy" .))) -}}
{{- if and .Values.hostNetwork (lt $delay 5) (not (has $surge (list "0" "0%"))) -}}
{{- fail (printf "probes.readiness.initialDelaySeconds: %d with hostNetwork, where the last agent answers the next one's probes: a rollout would end it for one that cannot start. Set 5 or more, or leave it out for 10" $delay) -}}
{{- end -}}
{{- end -}}

{{/* Whether the agent can see the choice of a scheduler where one must choose the cards. */}}
{{- define "xpu-agent.checkClaims" -}}
{{- if not (and .Values.api.enabled .Values.pods.enabled) -}}
{{- range $file, $text := .Values.config.map -}}
{{- if regexMatch "(?m)^[^#\n]*\\bplacement[\"']?\\s*:\\s*[\"']?claim\\b" (toString $text) -}}
{{- fail (printf "config.map.%s has placement: claim, and %s is false: no scheduler's choice is seen, and every pod would be refused. Enable it, or set placement to auto" $file (ternary "pods.enabled" "api.enabled" $.Values.api.enabled)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Every mistake that the schema cannot see. */}}
{{- define "xpu-agent.check" -}}
{{- $pools := fromJson (include "xpu-agent.pools" .) -}}
{{- if not $pools -}}
{{- fail "pools: none is on, so that no node would be served; have one with the vendors of its nodes" -}}
{{- end -}}
{{- range $name, $pool := $pools -}}
{{- range $vendor := $pool.vendors -}}
{{- if not (hasKey $.Values.vendors $vendor) -}}
{{- fail (printf "pools.%s.vendors: '%s' is no vendor here; there are %s, or add vendors.%s" $name $vendor (keys $.Values.vendors | sortAlpha | join ", ") $vendor) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $pool := $pools -}}
{{- range $other, $its := $pools -}}
{{- if lt $name $other -}}
{{- $one := fromJsonArray (include "xpu-agent.picked" (dict "root" $ "pool" $pool)) -}}
{{- $two := fromJsonArray (include "xpu-agent.picked" (dict "root" $ "pool" $its)) -}}
{{- if not (include "xpu-agent.disjoint" (dict "one" $one "other" $two)) -}}
{{- fail (printf "pools: '%s' and '%s' may pick the same node, and a node has one agent. Give their nodeSelector another value of one label, or exclude the other's nodes by nodeAffinity (NotIn, DoesNotExist). A node with cards of both belongs to one pool with vendors [%s]" $name $other (concat $pool.vendors $its.vendors | uniq | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.config.name .Values.config.map -}}
{{- fail "config: name (a ConfigMap that exists) and map (one of the chart's own) are both set; set one" -}}
{{- end -}}
{{- if not .Values.config.name -}}
{{- include "xpu-agent.checkDefaults" . -}}
{{- end -}}
{{- include "xpu-agent.checkClaims" . -}}
{{- include "xpu-agent.checkReceipts" . -}}
{{- include "xpu-agent.checkStatus" . -}}
{{- include "xpu-agent.checkSchedulers" . -}}
{{- include "xpu-agent.checkPlaces" . -}}
{{- include "xpu-agent.checkRollout" . -}}
{{- include "xpu-agent.checkFirstProbe" . -}}
{{- if and (not .Values.api.enabled) (has .Values.labels.output (list "node" "nodeFeature")) -}}
{{- fail (printf "labels.output: %s is told to the API server, and api.enabled is false; set file or none" .Values.labels.output) -}}
{{- end -}}
{{- if and (gt (int .Values.http.hostPort) 0) .Values.hostNetwork -}}
{{- fail "http.hostPort and hostNetwork are both set; on the host's network http.port is the host's already, leave hostPort 0" -}}
{{- end -}}
{{- if and .Values.metrics.compat (not .Values.usage.enabled) -}}
{{- fail (printf "metrics.compat: %s has series of use, and usage.enabled is false; set it to true" (join ", " .Values.metrics.compat)) -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled .Values.hostNetwork -}}
{{- fail "networkPolicy.enabled and hostNetwork are both set; no NetworkPolicy reaches pods on the host's network, where http.address 127.0.0.1 with probes.host 127.0.0.1 keeps others out" -}}
{{- end -}}
{{- range $key, $_ := .Values.podLabels -}}
{{- if has $key (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "xpu-agent.io/pool") -}}
{{- fail (printf "podLabels: %s is how the DaemonSet knows its pods; name another label" $key) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled -}}
{{- fail "metrics: podMonitor and serviceMonitor are both on, and each agent would be scraped twice; switch one on" -}}
{{- end -}}
{{- if and .Values.api.enabled (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount: create is false and name is empty; rights for everybody's 'default' account are not given. Name one" -}}
{{- end -}}
{{- end -}}

{{/* Whether the agents may write to pods: without the policy a node's token could change any pod of the cluster. */}}
{{- define "xpu-agent.checkReceipts" -}}
{{- if .Values.pods.receipts -}}
{{- if not (and .Values.api.enabled .Values.pods.enabled) -}}
{{- fail (printf "pods.receipts names annotations, and %s is false: no pod is seen to which they could be written" (ternary "pods.enabled" "api.enabled" .Values.api.enabled)) -}}
{{- end -}}
{{- if not (include "xpu-agent.admissionPolicy" .) -}}
{{- fail "pods.receipts gives the right to patch pods, which the admission policy alone keeps to the token's own node: it needs Kubernetes 1.30 and admissionPolicy.enabled" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether a Node's status can be written to: without the policy a node's token could do so with any Node's. */}}
{{- define "xpu-agent.checkStatus" -}}
{{- if and .Values.nodeStatus.resources (not (include "xpu-agent.admissionPolicy" .)) -}}
{{- if not .Values.api.enabled -}}
{{- fail "nodeStatus.resources names extended resources, and api.enabled is false: the agent could not write them to the Node" -}}
{{- end -}}
{{- fail "nodeStatus.resources gives the right to patch nodes/status, which the admission policy alone keeps to the token's own node: it needs Kubernetes 1.30 and admissionPolicy.enabled" -}}
{{- end -}}
{{- end -}}

{{/* Whether a policy can protect schedulers' annotations, and whether an account may write them. */}}
{{- define "xpu-agent.checkSchedulers" -}}
{{- if .Values.schedulerAnnotations.enabled -}}
{{- if semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "schedulerAnnotations.enabled takes a ValidatingAdmissionPolicy, which Kubernetes has from 1.30 on, and this is %s: set it to false. There everyone with the right to create a pod can choose its cards" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $writers := fromJson (include "xpu-agent.schedulers" .) -}}
{{- if not (concat $writers.users $writers.groups) -}}
{{- fail "schedulerAnnotations.writers names no account, so that no scheduler could choose cards for a pod; name the accounts of your schedulers" -}}
{{- end -}}
{{- end -}}
{{- end -}}
